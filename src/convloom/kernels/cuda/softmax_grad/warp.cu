// dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) with LOG: softmax's gradient along rows of K
//
// LANES neighbouring lanes share a row, a warp at most; the sum goes by shuffles.
// Against naive: lanes read neighbours.
// Limit: 12 bytes of memory traffic an element, where a row's second reading is cached.
#include "device/functions.cuh"
#include "device/index.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void softmax_grad_warp(const f32* dy, const f32* y, f32* dx, i64 rows, i64 k_count) {
    const i64 row = global_thread() / P::LANES;
    const int lane = threadIdx.x % P::LANES;
    const i64 first = least(row, rows - 1) * k_count;  // every lane of a warp shuffles
    f32 sum = 0.0f;
    for (i64 k = lane; k < k_count; k += P::LANES)
        sum = P::LOG != 0 ? sum + dy[first + k] : fmaf(dy[first + k], y[first + k], sum);
    sum = lanes_sum<1, P::LANES / 2>(sum);
    if (row >= rows) return;
    for (i64 k = lane; k < k_count; k += P::LANES) {
        const f32 g = dy[first + k], v = y[first + k];
        dx[first + k] = P::LOG != 0 ? g - exponential(v) * sum : v * (g - sum);
    }
}
