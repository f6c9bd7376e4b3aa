// mean = (sum of `count` float64 partial sums) / n, rounded once to float32
//
// One block; each thread adds every THREADS-th partial sum, then the block its threads' sums.
// Against naive: the chain of additions is shared by all threads.
// Limit: a launch.
#include "device/index.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void mean_of_partials_warp(const f64* partial, f32* mean, i64 count, i64 n) {
    f64 total = 0.0;
    for (i64 i = threadIdx.x; i < count; i += P::THREADS) total += partial[i];
    total = block_sum<P::THREADS>(total);
    if (threadIdx.x == 0) *mean = f32(total / f64(n));
}
