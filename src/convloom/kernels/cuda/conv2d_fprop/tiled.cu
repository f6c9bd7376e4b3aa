// Convolution, bias, rectifier (RELU) and 2x2 max-pooling of stride 2 (POOL) as one implicit matrix
// product: rows are output pixels, columns the filters of a group, the depth is (r, s, c).
//
// A block makes a tile of BM pixels x BN filters (device/tile.cuh); patches are gathered while
// tiles are loaded, four channels at a time where they lie together. With POOL a thread holds all
// cells of its windows and keeps the winners (device/pool.cuh says who wins).
// Against fused: an element is read from global memory once for a whole tile, not once for each
// product. Padding is multiplied like any other 0.
// Limit: 2*C*R*S FLOPs an output where the tiles fill the GPU; with few filters, the loads.
#include "device/activation.cuh"
#include "device/conv_tile.cuh"
#include "device/pool.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    conv2d_fprop_tiled(const f32* x, const f32* w, const f32* bias, f32* y, u8* index, i64 n) {
    using T = Tile<P>;
    constexpr i64 GROUP = Conv<P>::GROUP, COLS = ceil_div(GROUP, P::BN);
    const i64 first_col = blockIdx.x % COLS * P::BN, group = blockIdx.x / COLS % P::G;
    const i64 first_row = blockIdx.x / (COLS * P::G) * P::BM;
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, ConvPatches<P>{x, n, group}, first_row, ConvFilters<P>{w, group},
                      first_col, i32(Conv<P>::DEPTH));
#pragma unroll
    for (int j = 0; j < T::TN; ++j) {
        const i64 col = first_col + T::col(j);
        const f32 add = P::BIAS != 0 && col < GROUP ? bias[group * GROUP + col] : 0.0f;
#pragma unroll
        for (int i = 0; i < T::TM; ++i) {
            if (P::BIAS != 0) sum[i][j] += add;
            if (P::RELU != 0) sum[i][j] = rectified(sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < T::TM; i += P::POOL != 0 ? 4 : 1) {
        const i64 row = first_row + T::row(i), image = row / Pixels<P>::COUNT;
        if (image >= n) continue;
        const Pixel at = Pixels<P>::at(u32(row % Pixels<P>::COUNT));
#pragma unroll
        for (int j = 0; j < T::TN; j += 4) {
            const i64 col = first_col + T::col(j), filter = group * GROUP + col;
            if constexpr (P::POOL != 0) {
#pragma unroll
                for (int v = 0; v < 4; ++v) {
                    if (col + v >= GROUP) continue;
                    f32 best = sum[i][j + v];
                    u8 winner = 0;
#pragma unroll
                    for (int cell = 1; cell < 4; ++cell) {
                        if (!replaces(sum[i + cell][j + v], best)) continue;
                        best = sum[i + cell][j + v];
                        winner = u8(cell);
                    }
                    const i64 to =
                        Conv<P>::pooled_offset(image, filter + v, at.row / 2, at.col / 2);
                    y[to] = best;
                    index[to] = winner;
                }
            } else if constexpr (P::YROW != 0) {
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    if (col + v < GROUP)
                        y[Conv<P>::y_offset(image, filter + v, at.row, at.col)] = sum[i][j + v];
            } else {
                store_fours<GROUP % 4 == 0>(y + Conv<P>::y_offset(image, filter, at.row, at.col),
                                            &sum[i][j], col, GROUP);
            }
        }
    }
}
