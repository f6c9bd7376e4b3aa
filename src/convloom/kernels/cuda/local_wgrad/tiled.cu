// Filter gradients of a locally connected layer as a matrix product for every output pixel
//
// Rows are the filters of a group at the pixel, columns the taps (r, s, c), the depth is the batch:
// short, but with a product for every pixel there are blocks enough. A block makes a tile of BM
// filters x BN taps (device/tile.cuh). Filters are KRSC.
// Against naive: an element is read from global memory once for a whole tile.
// Limit: the bytes of dw and of the patches.
#include "device/local.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    local_wgrad_tiled(const f32* x, const f32* dy, f32* dw, i64 n) {
    using T = Tile<P>;
    constexpr i64 GROUP = Conv<P>::GROUP, DEPTH = Conv<P>::DEPTH;
    constexpr i64 ROWS = ceil_div(GROUP, P::BM), COLS = ceil_div(DEPTH, P::BN);
    const i64 first_col = blockIdx.x % COLS * P::BN;
    const i64 first_row = blockIdx.x / COLS % ROWS * P::BM;
    const i64 group = blockIdx.x / (COLS * ROWS) % P::G;
    const i64 pixel = blockIdx.x / (COLS * ROWS * P::G);
    const i32 p = i32(pixel / P::OW), q = i32(pixel % P::OW);
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, LocalGradientsByFilter<P>{dy, n, group, p, q}, first_row,
                      LocalPatchesByTap<P>{x, n, group, p, q}, first_col, i32(n));
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 row = first_row + T::row(i);
        if (row >= GROUP) continue;
        const i64 filter = pixel * P::K + group * GROUP + row;
#pragma unroll
        for (int j = 0; j < T::TN; j += 4) {
            const i64 tap = first_col + T::col(j);
            store_fours<DEPTH % 4 == 0>(dw + filter * DEPTH + tap, &sum[i][j], tap, DEPTH);
        }
    }
}
