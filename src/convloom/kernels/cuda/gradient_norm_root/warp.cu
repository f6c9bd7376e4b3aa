// norm = square root of the sum of `count` float64 partial sums
//
// One block; each thread adds every THREADS-th partial sum, then the block its threads' sums.
// Against naive: the chain of additions is shared by all threads.
// Limit: a launch.
#include "device/index.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void gradient_norm_root_warp(const f64* partial, f64* norm, i64 count) {
    f64 total = 0.0;
    for (i64 i = threadIdx.x; i < count; i += P::THREADS) total += partial[i];
    total = block_sum<P::THREADS>(total);
    if (threadIdx.x == 0) *norm = sqrt(total);
}
