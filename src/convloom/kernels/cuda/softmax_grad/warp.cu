// dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) with LOG: softmax's gradient along rows of K
//
// LANES neighbouring lanes share a row, a warp at most; the sum goes by shuffles. A lane keeps its
// EACH elements in registers; where a row has more than that (EACH 0) it reads them twice.
// Against naive: lanes read neighbours, and short rows are read once.
// Limit: 12 bytes of memory traffic an element.
#include "device/functions.cuh"
#include "device/index.cuh"
#include "device/reduce.cuh"

template <class P>
__device__ __forceinline__ f32 softmax_term(f32 dy, f32 y, f32 sum) {
    return P::LOG != 0 ? sum + dy : fmaf(dy, y, sum);
}

template <class P>
__device__ __forceinline__ f32 softmax_slope(f32 dy, f32 y, f32 sum) {
    return P::LOG != 0 ? dy - exponential(y) * sum : y * (dy - sum);
}

template <class P>
__global__ void softmax_grad_warp(const f32* dy, const f32* y, f32* dx, i64 rows, i64 k_count) {
    const i64 row = global_thread() / P::LANES;
    const int lane = threadIdx.x % P::LANES;
    const i64 first = least(row, rows - 1) * k_count;  // every lane of a warp shuffles
    f32 sum = 0.0f;
    if constexpr (P::EACH != 0) {
        f32 g[P::EACH], v[P::EACH];
#pragma unroll
        for (int e = 0; e < P::EACH; ++e) {
            const i32 k = lane + e * i32(P::LANES);
            g[e] = k < k_count ? dy[first + k] : 0.0f;
            v[e] = k < k_count ? y[first + k] : 0.0f;
            sum = softmax_term<P>(g[e], v[e], sum);
        }
        sum = lanes_sum<1, P::LANES / 2>(sum);
        if (row >= rows) return;
#pragma unroll
        for (int e = 0; e < P::EACH; ++e) {
            const i32 k = lane + e * i32(P::LANES);
            if (k < k_count) dx[first + k] = softmax_slope<P>(g[e], v[e], sum);
        }
    } else {
        for (i64 k = lane; k < k_count; k += P::LANES)
            sum = softmax_term<P>(dy[first + k], y[first + k], sum);
        sum = lanes_sum<1, P::LANES / 2>(sum);
        if (row >= rows) return;
        for (i64 k = lane; k < k_count; k += P::LANES)
            dx[first + k] = softmax_slope<P>(dy[first + k], y[first + k], sum);
    }
}
