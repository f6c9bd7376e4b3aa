// The convolution of the tiled rung, with asynchronous copies (device/async_tile.cuh), for channels
// that are read four at a time.
//
// Against tiled: operands do not pass through registers, and are asked for STAGES - 1 steps ahead;
// a thread reads four depths of a row at once, so tiles need not be transposed.
// Limit: as tiled. Without the 1 in its launch bounds ptxas would spill to fit more blocks.
#include "device/async_tile.cuh"
#include "device/conv_tile.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS, 1)
    conv2d_fprop_async(const f32* x, const f32* w, const f32* bias, f32* y, u8* index, i64 n) {
    using T = AsyncTile<P>;
    constexpr i64 COLS = ceil_div(Conv<P>::GROUP, P::BN);
    const i64 first_col = blockIdx.x % COLS * P::BN, group = blockIdx.x / COLS % P::G;
    const i64 first_row = blockIdx.x / (COLS * P::G) * P::BM;
    f32 sum[T::TM][T::TN];
    multiply_async<P>(sum, ConvPatches<P>{x, n, group}, first_row, ConvFilters<P>{w, group},
                      first_col, i32(Conv<P>::DEPTH));
    store_outputs<P, T>(sum, first_row, first_col, group, bias, y, index, n);
}
