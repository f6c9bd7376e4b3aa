// y[n,o] = b[o] + sum over i of x[n,i] * w[o,i], then the activation (ACT), for few outputs
//
// A block takes SAMPLES samples and all outputs: one of a small batch, so that there are many
// blocks. Its WARPS warps share the inputs: neighbouring threads take neighbouring inputs, four at a
// time if I allows, each for all outputs; lanes are added by shuffles, warps through shared memory.
// Against tiled: a tile would be mostly empty; here every lane has work, and the deep sum is
// shared by a block.
// Limit: reading w once a block from the second-level cache.
#include "device/activation.cuh"
#include "device/reduce.cuh"
#include "device/tile.cuh"

template <class P>
__global__ void __launch_bounds__(32 * P::WARPS)
    linear_fprop_warp(const f32* x, const f32* w, const f32* bias, f32* y, i64 n) {
    constexpr int SAMPLES = int(P::SAMPLES), WARPS = int(P::WARPS), OUTPUTS = int(P::O);
    constexpr int VEC = P::I % 4 == 0 ? 4 : 1;
    __shared__ f32 part[WARPS][SAMPLES * OUTPUTS];
    const i64 first = i64(blockIdx.x) * SAMPLES;
    f32 sum[SAMPLES][OUTPUTS] = {};
    for (i64 i = threadIdx.x * VEC; i < P::I; i += 32 * WARPS * VEC) {
        f32 input[SAMPLES][VEC];
#pragma unroll
        for (int s = 0; s < SAMPLES; ++s)
            load_or_zero(input[s], x, (first + s) * P::I + i, first + s < n);
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            f32 weight[VEC];
            load_or_zero(weight, w, o * P::I + i, true);
#pragma unroll
            for (int s = 0; s < SAMPLES; ++s)
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    sum[s][o] = fmaf(input[s][v], weight[v], sum[s][o]);
        }
    }
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s)
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            const f32 total = warp_sum(sum[s][o]);
            if (threadIdx.x % 32 == 0) part[threadIdx.x / 32][s * OUTPUTS + o] = total;
        }
    __syncthreads();
    const int at = threadIdx.x;
    if (at >= SAMPLES * OUTPUTS || first + at / OUTPUTS >= n) return;
    f32 total = part[0][at];
    for (int other = 1; other < WARPS; ++other) total += part[other][at];
    if (P::BIAS != 0) total += bias[at % OUTPUTS];
    y[first * OUTPUTS + at] = activated<P>(total);
}
