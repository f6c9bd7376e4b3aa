// Gradients of weight and bias from the chunks' sums, and what norm_grad_apply multiplies by
//
// factors (3, channel): a, b and c of dx = a g - b - c (x - mean). A block takes 32 channels: each
// of its 32 warps adds every 32nd chunk, lane by lane; then the 32 sums are added in order.
// Against naive: 32 loads of a channel are on their way at once, by neighbours.
// Limit: waiting for one round of loads from the second-level cache.
#include "device/index.cuh"

template <class P>
__global__ void __launch_bounds__(1024)
    batch_norm_grad_finish_tiled(const f32* partials, i64 channels, i64 rows, i64 chunks,
                                 const f32* invstd, f32* factors, const f32* weight, f32* dweight,
                                 f32* dbias) {
    constexpr int WARPS = 32;
    __shared__ f64 part[2][WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 c = i64(blockIdx.x) * 32 + lane;
    f64 plain = 0.0, moment = 0.0;
    if (c < channels)
#pragma unroll 4
        for (i64 i = warp; i < chunks; i += WARPS) {
            plain += partials[2 * i * channels + c];
            moment += partials[(2 * i + 1) * channels + c];
        }
    part[0][warp][lane] = plain;
    part[1][warp][lane] = moment;
    __syncthreads();
    if (warp != 0 || c >= channels) return;
    for (int other = 1; other < WARPS; ++other) {
        plain += part[0][other][lane];
        moment += part[1][other][lane];
    }
    const f64 inverse = invstd[c], scale = P::AFFINE != 0 ? inverse * weight[c] : inverse;
    if constexpr (P::AFFINE != 0) {
        dweight[c] = f32(moment * inverse);
        dbias[c] = f32(plain);
    }
    factors[c] = f32(scale);
    factors[channels + c] = f32(scale * plain / f64(rows));
    factors[2 * channels + c] = f32(scale * inverse * inverse * moment / f64(rows));
}
