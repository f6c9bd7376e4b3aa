// The loss KIND of x and its target t, summed over all elements: its mean where one block does all,
// else each block's sum, of which mean_of_partials makes the mean.
//
// Threads take every THREADS-th element of a block's share, and blocks go round; lanes are added by
// shuffles. Losses are float32, sums float64.
// Against naive: neighbouring threads read neighbours, and few partial sums are written.
// Limit: 8 bytes of memory traffic an element.
#include "device/index.cuh"
#include "device/pointwise_loss.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void pointwise_loss_warp(const f32* x, const f32* t, f64* partial, f32* mean, i64 size,
                                    f32 a, i64 divisor) {
    f64 sum = 0.0;
    for (i64 i = global_thread(); i < size; i += i64(gridDim.x) * P::THREADS)
        sum += f64(loss_value<P::KIND>(x[i], t[i], a));
    sum = block_sum<P::THREADS>(sum);
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1)
        *mean = f32(sum / f64(divisor));
    else
        partial[blockIdx.x] = sum;
}
