// y[n,o] = b[o] + sum over i of x[n,i] * w[o,i], then the activation (ACT), for few outputs
//
// A block takes `samples` samples, one or SAMPLES, and all outputs: one of a small batch, so that
// there are many blocks. Its warps, up to WARPS, share the inputs: neighbouring threads take
// neighbouring inputs, four at a time if I allows, each for all outputs; lanes are added by
// shuffles, warps through shared memory.
// Against tiled: a tile would be mostly empty; here every lane has work, and the deep sum is
// shared by a block.
// Limit: reading w once a block from the second-level cache.
#include "device/activation.cuh"
#include "device/reduce.cuh"
#include "device/tile.cuh"

// Puts each output's sum over a warp's share of the inputs in `part`, for the COUNT samples from
// `first` on; those from n on are 0.
template <class P, int COUNT>
__device__ __forceinline__ void linear_warp_sums(const f32* x, const f32* w, i64 first, i64 n,
                                                 f32* part) {
    constexpr int VEC = P::I % 4 == 0 ? 4 : 1;
    f32 sum[COUNT][P::O] = {};
    for (i64 i = threadIdx.x * VEC; i < P::I; i += blockDim.x * VEC) {
        f32 input[COUNT][VEC];
#pragma unroll
        for (int s = 0; s < COUNT; ++s)
            load_or_zero(input[s], x, (first + s) * P::I + i, first + s < n);
#pragma unroll
        for (int o = 0; o < P::O; ++o) {
            f32 weight[VEC];
            load_or_zero(weight, w, o * P::I + i, true);
#pragma unroll
            for (int s = 0; s < COUNT; ++s)
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    sum[s][o] = fmaf(input[s][v], weight[v], sum[s][o]);
        }
    }
#pragma unroll
    for (int s = 0; s < COUNT; ++s)
#pragma unroll
        for (int o = 0; o < P::O; ++o) {
            const f32 total = warp_sum(sum[s][o]);
            if (threadIdx.x % 32 == 0) part[s * P::O + o] = total;
        }
}

template <class P>
__global__ void __launch_bounds__(32 * P::WARPS)
    linear_fprop_warp(const f32* x, const f32* w, const f32* bias, f32* y, i64 samples, i64 n) {
    __shared__ f32 part[P::WARPS][P::SAMPLES * P::O];
    const i64 first = i64(blockIdx.x) * samples;
    f32* own = part[threadIdx.x / 32];
    if (samples == 1)
        linear_warp_sums<P, 1>(x, w, first, n, own);
    else
        linear_warp_sums<P, P::SAMPLES>(x, w, first, n, own);
    __syncthreads();
    const int at = threadIdx.x;
    if (at >= samples * P::O || first + at / P::O >= n) return;
    f32 total = part[0][at];
    for (int other = 1; other < int(blockDim.x) / 32; ++other) total += part[other][at];
    if (P::BIAS != 0) total += bias[at % P::O];
    y[first * P::O + at] = activated<P>(total);
}
