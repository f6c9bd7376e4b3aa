// y = exp(x - max x) / sum exp(x - max x), or its logarithm (LOG), along rows of K neighbours
//
// LANES neighbouring lanes share a row, a warp at most; maximum and sum go by shuffles. The sum is
// float64.
// Against naive: lanes read neighbours, and a row's exponentials are taken at once.
// Limit: 8 bytes of memory traffic an element, where a row's second and third reading is cached.
#include "device/functions.cuh"
#include "device/index.cuh"
#include "device/loss.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void softmax_warp(const f32* x, f32* y, i64 rows, i64 k_count) {
    const i64 row = global_thread() / P::LANES;
    const int lane = threadIdx.x % P::LANES;
    const i64 first = least(row, rows - 1) * k_count;  // every lane of a warp shuffles
    f32 top = -__int_as_float(0x7f800000);
    for (i64 k = lane; k < k_count; k += P::LANES) top = greater_or_nan(top, x[first + k]);
#pragma unroll
    for (int distance = P::LANES / 2; distance > 0; distance /= 2)
        top = greater_or_nan(top, __shfl_xor_sync(0xffffffffu, top, distance));
    f64 sum = 0.0;
    for (i64 k = lane; k < k_count; k += P::LANES) sum += f64(exponential(x[first + k] - top));
    sum = lanes_sum<1, P::LANES / 2>(sum);
    if (row >= rows) return;
    const f32 share = f32(1.0 / sum), log_sum = P::LOG != 0 ? f32(log(sum)) : 0.0f;
    for (i64 k = lane; k < k_count; k += P::LANES) {
        const f32 shifted = x[first + k] - top;
        y[first + k] = P::LOG != 0 ? shifted - log_sum : exponential(shifted) * share;
    }
}
