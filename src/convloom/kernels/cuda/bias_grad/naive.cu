// db[k] = sum over samples and positions of dy[n,k,i]
//
// One thread a channel k of K; each sample has INNER positions, next to each other if ROW, else K
// apart. The sum is float64: it is long, and its terms mostly cancel.
// Limit: K threads read 4*N*K*INNER bytes, so memory latency, not bandwidth.
#include "device/index.cuh"

template <class P>
__global__ void bias_grad_naive(const f32* dy, f32* db, i64 n) {
    const i64 k = global_thread();
    if (k >= P::K) return;
    f64 sum = 0.0;
    for (i64 sample = 0; sample < n; ++sample) {
        const f32* from = dy + sample * P::K * P::INNER;
        for (i64 i = 0; i < P::INNER; ++i)
            sum += from[offset_of<P::K, 1, P::INNER, P::ROW != 0>(k, 0, i)];
    }
    db[k] = f32(sum);
}
