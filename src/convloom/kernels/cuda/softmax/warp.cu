// y = exp(x - max x) / sum exp(x - max x), or its logarithm (LOG), along rows of K neighbours
//
// LANES neighbouring lanes share a row, a warp at most; maximum and sum go by shuffles. A lane
// keeps its EACH elements in registers; where a row has more than that (EACH 0) it reads them again
// for each walk. Sums of lanes are added in float64.
// Against naive: lanes read neighbours, and short rows are read once.
// Limit: 8 bytes of memory traffic an element.
#include "device/functions.cuh"
#include "device/index.cuh"
#include "device/loss.cuh"
#include "device/reduce.cuh"

template <int LANES>
__device__ __forceinline__ f32 row_top(f32 top) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        top = greater_or_nan(top, __shfl_xor_sync(0xffffffffu, top, distance));
    return top;
}

template <class P>
__device__ __forceinline__ void softmax_kept(const f32* x, f32* y, bool real, i32 k_count,
                                             int lane) {
    const f32 lowest = -__int_as_float(0x7f800000);
    f32 value[P::EACH], top = lowest, part = 0.0f;
#pragma unroll
    for (int e = 0; e < P::EACH; ++e) {
        const i32 k = lane + e * i32(P::LANES);
        value[e] = k < k_count ? x[k] : lowest;
        top = greater_or_nan(top, value[e]);
    }
    top = row_top<P::LANES>(top);
#pragma unroll
    for (int e = 0; e < P::EACH; ++e) {
        value[e] -= top;
        const f32 power = exponential(value[e]);
        if (P::LOG == 0) value[e] = power;
        if (lane + e * i32(P::LANES) < k_count) part += power;
    }
    const f64 sum = lanes_sum<1, P::LANES / 2>(f64(part));
    if (!real) return;
    const f32 share = f32(1.0 / sum), log_sum = P::LOG != 0 ? f32(log(sum)) : 0.0f;
#pragma unroll
    for (int e = 0; e < P::EACH; ++e) {
        const i32 k = lane + e * i32(P::LANES);
        if (k < k_count) y[k] = P::LOG != 0 ? value[e] - log_sum : value[e] * share;
    }
}

template <class P>
__device__ __forceinline__ void softmax_walked(const f32* x, f32* y, bool real, i64 k_count,
                                               int lane) {
    f32 top = -__int_as_float(0x7f800000);
    for (i64 k = lane; k < k_count; k += P::LANES) top = greater_or_nan(top, x[k]);
    top = row_top<P::LANES>(top);
    f64 sum = 0.0;
    for (i64 k = lane; k < k_count; k += P::LANES) sum += f64(exponential(x[k] - top));
    sum = lanes_sum<1, P::LANES / 2>(sum);
    if (!real) return;
    const f32 share = f32(1.0 / sum), log_sum = P::LOG != 0 ? f32(log(sum)) : 0.0f;
    for (i64 k = lane; k < k_count; k += P::LANES) {
        const f32 shifted = x[k] - top;
        y[k] = P::LOG != 0 ? shifted - log_sum : exponential(shifted) * share;
    }
}

template <class P>
__global__ void softmax_warp(const f32* x, f32* y, i64 rows, i64 k_count) {
    const i64 row = global_thread() / P::LANES;
    const int lane = threadIdx.x % P::LANES;
    const i64 first = least(row, rows - 1) * k_count;  // every lane of a warp shuffles
    if constexpr (P::EACH != 0)
        softmax_kept<P>(x + first, y + first, row < rows, i32(k_count), lane);
    else
        softmax_walked<P>(x + first, y + first, row < rows, k_count, lane);
}
