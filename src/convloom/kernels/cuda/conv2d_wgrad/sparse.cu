// Gradients of filters and, with BIAS, of the bias, of a convolution that 2x2 pooling followed, one
// product in four (device/sparse.cuh says which).
//
// A warp owns eight filters and LANES channels, a block four such warps. They walk a chunk of the
// windows: a lane reads its channel of the window's patch, then adds each filter's gradient times
// the part of the patch that the winner saw. All sums stay in registers. Chunk c writes at
// dw + c * stride and db + c * stride, in KRSC order; several chunks are added up by sum_partials.
// Against tiled: a quarter of the products. What is left out is not multiplied, so a NaN in x that
// no winner saw does not show.
// Limit: the branch of each filter and window beside its R*S multiply-adds; where C is below 32,
// windows that share a warp and differ in their winners take turns.
#include "device/sparse.cuh"

template <class P>
__global__ void __launch_bounds__(128)
    conv2d_wgrad_sparse(const f32* x, const f32* dyp, const u8* index, f32* dw, f32* db, i64 n,
                        i64 chunk, i64 stride) {
    using Kit = Sparse<P>;
    constexpr int WARPS = 4, FILTERS = 8, TAPS = Kit::TAPS, LANES = Kit::LANES;
    constexpr i64 ACROSS = ceil_div(P::K, WARPS * FILTERS), CHANNELS = P::C / LANES;
    constexpr u32 COUNT = u32(Kit::ROWS * Kit::COLS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 first = (blockIdx.x % ACROSS * WARPS + warp) * FILTERS;
    const i64 channel = blockIdx.x / ACROSS % CHANNELS * LANES + lane % LANES;
    const i64 number = blockIdx.x / (ACROSS * CHANNELS);
    const i64 last = least((number + 1) * chunk, n * COUNT);
    if (first >= P::K) return;  // a whole warp; there is no barrier
    f32 sum[FILTERS][TAPS] = {}, bias[FILTERS] = {};
    for (i64 i = number * chunk + lane / LANES; i < last; i += Kit::AT_ONCE) {
        const i64 image = i / COUNT;
        const u32 rest = u32(i % COUNT);
        const i32 top = i32(rest / u32(Kit::COLS)) * 2 - i32(P::PH);
        const i32 left = i32(rest % u32(Kit::COLS)) * 2 - i32(P::PW);
        const f32* from = x + image * Conv<P>::X_SIZE + channel;
        typename Kit::Patch patch;
#pragma unroll
        for (int a = 0; a <= Kit::R; ++a)
#pragma unroll
            for (int b = 0; b <= Kit::S; ++b) {
                const i32 row = top + a, col = left + b;
                const bool inside = row >= 0 && row < P::H && col >= 0 && col < P::W;
                patch[a][b] = inside ? from[(row * i32(P::W) + col) * i32(P::C)] : 0.0f;
            }
#pragma unroll
        for (int f = 0; f < FILTERS; f += 4) {
            const FourWinners four = FourWinners::load(dyp, index, i * P::K + first + f);
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                if (P::BIAS != 0) bias[f + v] += four.gradient[v];
                Kit::gather(sum[f + v], patch, four.gradient[v], four.cell(v));
            }
        }
    }
#pragma unroll
    for (int f = 0; f < FILTERS; ++f) {
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) {
            const f32 total = lanes_sum<LANES, 16>(sum[f][tap]);
            if (lane < LANES)
                dw[number * stride + (first + f) * Conv<P>::DEPTH + tap * P::C + channel] = total;
        }
        if constexpr (P::BIAS != 0) {
            const f32 total = lanes_sum<LANES, 16>(bias[f]);
            if (lane == 0 && channel == 0) db[number * stride + first + f] = total;
        }
    }
}
