// db[k] = sum over samples and positions of dy[n,k,i]
//
// One thread a channel k of K and chunk of `samples` samples; chunk c writes at db + c * K. Where
// there are several, sum_partials adds them up. Each sample has INNER positions, next to each other
// if ROW, else K apart. Sums are float64: they are long, and their terms mostly cancel.
// Limit: few threads, each of which waits for its loads.
#include "device/index.cuh"

template <class P>
__global__ void bias_grad_naive(const f32* dy, f32* db, i64 n, i64 samples) {
    const i64 i = global_thread(), k = i % P::K, first = i / P::K * samples;
    if (i >= P::K && first >= n) return;
    f64 sum = 0.0;
    for (i64 sample = first; sample < least(first + samples, n); ++sample) {
        const f32* from = dy + sample * P::K * P::INNER;
#pragma unroll 16  // so that as many loads are on their way
        for (i64 j = 0; j < P::INNER; ++j)
            sum += from[offset_of<P::K, 1, P::INNER, P::ROW != 0>(k, 0, j)];
    }
    db[i] = f32(sum);
}
