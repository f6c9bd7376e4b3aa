// As conv2d_fprop/direct, for filters of few taps (C*R*S): a lane holds all weights of four filters
// in registers. G is 1, outputs are NHWC.
//
// A block walks a chunk of output pixels, or with POOL of pooling windows; the lanes of a warp share
// several of them, and those of one pixel all filters, or 128 of them.
// Against tiled: a tile would be loaded for few products each; weights are read once a block.
// Limit: writing y.
#include "device/conv_tile.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    conv2d_fprop_direct_few(const f32* x, const f32* w, const f32* bias, f32* y, u8* index, i64 n,
                            i64 chunk) {
    constexpr int WARPS = 8, VEC = 4, DEPTH = int(Conv<P>::DEPTH), CELLS = P::POOL != 0 ? 4 : 1;
    constexpr int ACROSS = row_lanes(P::K / VEC), DOWN = 32 / ACROSS;
    constexpr i64 BLOCKS = ceil_div(P::K, ACROSS * VEC);  // of filters
    // Windows, or pixels, of an image.
    constexpr i64 ROWS = P::POOL != 0 ? Conv<P>::POOL_ROWS : P::OH;
    constexpr i64 COLS = P::POOL != 0 ? Conv<P>::POOL_COLS : P::OW;
    constexpr i64 STEP = WARPS * DOWN;
    static_assert(P::YROW == 0 && P::K % VEC == 0 && P::G == 1);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 number = blockIdx.x / BLOCKS;
    const i64 filter = (blockIdx.x % BLOCKS * ACROSS + lane % ACROSS) * VEC;
    const i64 last = least((number + 1) * chunk, n * ROWS * COLS);
    if (filter >= P::K) return;
    f32 weight[DEPTH][VEC], add[VEC] = {};
#pragma unroll
    for (int tap = 0; tap < DEPTH; ++tap)
#pragma unroll
        for (int v = 0; v < VEC; ++v)
            weight[tap][v] = w[Conv<P>::w_offset(filter + v, tap % P::C, tap / P::C / P::S,
                                                 tap / P::C % P::S)];
    if constexpr (P::BIAS != 0) load_or_zero(add, bias, filter, true);
    i64 i = number * chunk + warp * DOWN + lane / ACROSS;
    auto at = Walk<greatest(ROWS, 1), greatest(COLS, 1), STEP>::from(i);
    for (; i < last; i += STEP, at.move()) {
        f32 best[VEC];
        u32 winners = 0;  // one a byte
#pragma unroll
        for (int cell = 0; cell < CELLS; ++cell) {
            const i32 y_row = P::POOL != 0 ? 2 * at.row + cell / 2 : at.row;
            const i32 y_col = P::POOL != 0 ? 2 * at.col + cell % 2 : at.col;
            const i32 row = y_row * i32(P::UH) - i32(P::PH);
            const i32 col = y_col * i32(P::UW) - i32(P::PW);
            const f32* from = x + Conv<P>::x_offset(at.image, 0, row, col);
            f32 sum[VEC] = {};
#pragma unroll
            for (int tap = 0; tap < DEPTH; ++tap) {
                const f32 value = tap_of<P>(from, row, col, tap);
#pragma unroll
                for (int v = 0; v < VEC; ++v) sum[v] = fmaf(value, weight[tap][v], sum[v]);
            }
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                if (P::BIAS != 0) sum[v] += add[v];
                sum[v] = activated<P>(sum[v]);
                if (cell != 0 && !replaces(sum[v], best[v])) continue;
                best[v] = sum[v];
                winners = (winners & ~(255u << 8 * v)) | u32(cell) << 8 * v;
            }
        }
        if constexpr (P::POOL == 0) {
            store_fours<true>(y + Conv<P>::y_offset(at.image, filter, at.row, at.col), best, 0, VEC);
        } else {
            const i64 to = Conv<P>::pooled_offset(at.image, filter, at.row, at.col);
            store_fours<true>(y + to, best, 0, VEC);
            *reinterpret_cast<u32*>(index + to) = winners;
        }
    }
}
