// Gradients of filters with few taps (C*R*S) and, with BIAS, of the bias. POOL is that of the fused
// rung; G is 1.
//
// A lane stands on VEC filters, whose gradients it reads at once, and keeps the sums of all their
// taps in registers; a block walks a chunk of output pixels, or with POOL of pooling windows,
// several at once where filters are few: of the four cells of a window only the winner has a
// gradient, and each lane looks up its own. Lanes are added by shuffles, warps through shared
// memory. Chunk c writes at dw + c * stride and db + c * stride, in KRSC order; several chunks are
// added up by sum_partials.
// Against tiled: a tile would be mostly empty; and with POOL there is one product in four.
// Limit: reading dy; with one filter a lane, a load from the first-level cache for each product.
#include "device/conv_tile.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    conv2d_wgrad_warp(const f32* x, const f32* dy, const u8* index, f32* dw, f32* db, i64 n,
                      i64 chunk, i64 stride) {
    constexpr int WARPS = 8, DEPTH = int(Conv<P>::DEPTH), SUMS = DEPTH + 1;
    constexpr int VEC = P::POOL == 0 && P::YROW == 0 && P::K % 4 == 0 ? 4 : 1;
    constexpr int FILTERS = row_lanes(P::K), ACROSS = FILTERS / VEC, DOWN = 32 / ACROSS;
    constexpr i64 BLOCKS = ceil_div(P::K, FILTERS);  // of filters
    // Windows, or pixels, of an image.
    constexpr i64 ROWS = P::POOL != 0 ? Conv<P>::POOL_ROWS : P::OH;
    constexpr i64 COLS = P::POOL != 0 ? Conv<P>::POOL_COLS : P::OW;
    constexpr i64 STEP = WARPS * DOWN;
    __shared__ f32 part[WARPS][FILTERS * SUMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 number = blockIdx.x / BLOCKS;
    const i64 filter = blockIdx.x % BLOCKS * FILTERS + lane % ACROSS * VEC;
    const i64 last = least((number + 1) * chunk, n * ROWS * COLS);
    f32 sum[VEC][SUMS] = {};
    if (filter < P::K) {
        i64 i = number * chunk + warp * DOWN + lane / ACROSS;
        auto at = Walk<greatest(ROWS, 1), greatest(COLS, 1), STEP>::from(i);
        for (; i < last; i += STEP, at.move()) {
            f32 gradient[VEC];
            i32 y_row = at.row, y_col = at.col;
            if constexpr (P::POOL != 0) {
                const i64 from = Conv<P>::pooled_offset(at.image, filter, y_row, y_col);
                gradient[0] = dy[from];
                y_row = 2 * y_row + index[from] / 2, y_col = 2 * y_col + index[from] % 2;
            } else {
                load_or_zero(gradient, dy, Conv<P>::y_offset(at.image, filter, y_row, y_col), true);
            }
            const i32 row = y_row * i32(P::UH) - i32(P::PH);
            const i32 col = y_col * i32(P::UW) - i32(P::PW);
            const f32* from = x + Conv<P>::x_offset(at.image, 0, row, col);
#pragma unroll
            for (int v = 0; v < VEC; ++v) sum[v][DEPTH] += gradient[v];
#pragma unroll
            for (int tap = 0; tap < DEPTH; ++tap) {
                const f32 value = tap_of<P>(from, row, col, tap);
#pragma unroll
                for (int v = 0; v < VEC; ++v) sum[v][tap] = fmaf(value, gradient[v], sum[v][tap]);
            }
        }
    }
#pragma unroll
    for (int v = 0; v < VEC; ++v)
#pragma unroll
        for (int tap = 0; tap < SUMS; ++tap) {
            const f32 total = lanes_sum<ACROSS, 16>(sum[v][tap]);
            if (lane < ACROSS) part[warp][(lane * VEC + v) * SUMS + tap] = total;
        }
    __syncthreads();
    for (int at = threadIdx.x; at < FILTERS * SUMS; at += 32 * WARPS) {
        const i64 k = blockIdx.x % BLOCKS * FILTERS + at / SUMS;
        if (k >= P::K) continue;
        f32 total = part[0][at];
        for (int other = 1; other < WARPS; ++other) total += part[other][at];
        if (at % SUMS < DEPTH)
            dw[number * stride + k * DEPTH + at % SUMS] = total;
        else if (P::BIAS != 0)
            db[number * stride + k] = total;
    }
}
