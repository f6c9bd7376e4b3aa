// Convolution, bias, activation (ACT) and 2x2 max-pooling of stride 2 (POOL) as one implicit matrix
// product: rows are output pixels, columns the filters of a group, the depth is (r, s, c).
//
// A block makes a tile of BM pixels x BN filters (device/tile.cuh); patches are gathered while
// tiles are loaded, four channels at a time where they lie together. With POOL a thread holds all
// cells of its windows and keeps the winners (device/pool.cuh says who wins).
// Against fused: an element is read from global memory once for a whole tile, not once for each
// product. Padding is multiplied like any other 0.
// Limit: 2*C*R*S FLOPs an output where the tiles fill the GPU; with few filters, the loads.
#include "device/conv_tile.cuh"

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
    store_outputs<P, T>(sum, first_row, first_col, group, bias, y, index, n);
}
