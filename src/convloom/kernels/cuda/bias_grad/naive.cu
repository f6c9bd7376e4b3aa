// db[k] = sum over samples and positions of dy[n,k,i]
//
// One thread a channel k of K; each sample has INNER positions, next to each other if ROW, else K
// apart. A sample is summed by itself first, which keeps rounding errors small.
// Limit: K threads read 4*N*K*INNER bytes, so memory latency, not bandwidth.
#include "device/index.cuh"

template <class P>
__global__ void bias_grad_naive(const f32* dy, f32* db, i64 n) {
    const i64 k = global_thread();
    if (k >= P::K) return;
    f32 total = 0.0f;
    for (i64 sample = 0; sample < n; ++sample) {
        f32 sum = 0.0f;
        for (i64 i = 0; i < P::INNER; ++i)
            sum += dy[sample * P::K * P::INNER + offset_of<P::K, 1, P::INNER, P::ROW != 0>(k, 0, i)];
        total += sum;
    }
    db[k] = total;
}
