// Gradients of filters and, with BIAS, of the bias as one implicit matrix product: rows are the
// filters of a group, columns the taps (r, s, c) and one column of ones, the depth is the output
// pixels of a chunk of the batch. POOL is that of the fused rung.
//
// A block makes a tile of BM filters x BN taps (device/tile.cuh). Chunk c of `chunk` pixels writes
// at dw + c * stride and db + c * stride, filters in KRSC order: where there are several chunks,
// these are partial sums, which sum_partials adds up in order.
// Against fused: an element is read from global memory once for a whole tile; and the batch makes
// more blocks, not longer ones.
// Limit: 2*K*C*R*S FLOPs a pixel, and the bytes of the partial sums.
#include "device/conv_tile.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    conv2d_wgrad_tiled(const f32* x, const f32* dy, const u8* index, f32* dw, f32* db, i64 n,
                       i64 chunk, i64 stride) {
    using T = Tile<P>;
    constexpr i64 GROUP = Conv<P>::GROUP, DEPTH = Conv<P>::DEPTH;
    constexpr i64 ROWS = ceil_div(GROUP, P::BM), COLS = ceil_div(DEPTH + P::BIAS, P::BN);
    const i64 first_col = blockIdx.x % COLS * P::BN;
    const i64 first_row = blockIdx.x / COLS % ROWS * P::BM;
    const i64 group = blockIdx.x / (COLS * ROWS) % P::G;
    const i64 part = blockIdx.x / (COLS * ROWS * P::G), first = part * chunk;
    const auto pixels = PixelChunk<P>::of(first, least(chunk, n * Pixels<P>::COUNT - first));
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, ConvGradientsByFilter<P>{dy, index, group, pixels}, first_row,
                      ConvPatchesByTap<P>{x, group, pixels}, first_col, pixels.count);
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 row = first_row + T::row(i), filter = group * GROUP + row;
        if (row >= GROUP) continue;
#pragma unroll
        for (int j = 0; j < T::TN; j += 4) {
            const i64 tap = first_col + T::col(j);
            store_fours<DEPTH % 4 == 0>(dw + part * stride + filter * DEPTH + tap, &sum[i][j],
                                        tap, DEPTH);
            if constexpr (P::BIAS != 0) {
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    if (tap + v == DEPTH) db[part * stride + filter] = sum[i][j + v];
            }
        }
    }
}
