// Gradient of a convolution's input as an implicit matrix product: rows are inputs, columns the
// channels of a group, the depth is (tap, filter). MASK and POOL are those of the fused rung.
//
// A block makes a tile of BM inputs x BN channels (device/tile.cuh). Its inputs are of one residue
// class modulo the stride: they have met the same taps, so a stride wastes no products.
// Against fused: an element is read from global memory once for a whole tile, not once for each
// product. Outputs that do not exist count as 0, also against an infinite weight.
// Limit: 2*K*R*S FLOPs an input (by stride^2 less); with few channels, the loads.
#include "device/activation.cuh"
#include "device/conv_tile.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    conv2d_dgrad_tiled(const f32* dy, const u8* index, const f32* w, const f32* a, f32* dx,
                       i64 n) {
    using T = Tile<P>;
    using Class = ResidueClass<P>;
    constexpr i64 COLS = ceil_div(P::C, P::BN);
    const i64 first_col = blockIdx.x % COLS * P::BN, group = blockIdx.x / COLS % P::G;
    const Class part = Class::of(blockIdx.x / (COLS * P::G) % Class::COUNT);
    const i64 first_row = blockIdx.x / (COLS * P::G * Class::COUNT) * P::BM;
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, ConvOutputGradients<P>{dy, index, n, group, part}, first_row,
                      ConvFiltersByChannel<P>{w, group, part}, first_col,
                      part.taps() * i32(Conv<P>::GROUP));
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 number = first_row + T::row(i), image = number / (Class::HEIGHT * Class::WIDTH);
        const u32 rest = u32(number % (Class::HEIGHT * Class::WIDTH));
        const i64 row = rest / u32(Class::WIDTH) * P::UH + part.row;
        const i64 col = rest % u32(Class::WIDTH) * P::UW + part.col;
        if (image >= n || row >= P::H || col >= P::W) continue;
#pragma unroll
        for (int j = 0; j < T::TN; j += 4) {
            const i64 c = first_col + T::col(j), channel = group * P::C + c;
            if constexpr (P::MASK != 0) {
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    if (c + v < P::C)
                        sum[i][j + v] = gated<P>(
                            sum[i][j + v], a[Conv<P>::x_offset(image, channel + v, row, col)]);
            }
            if constexpr (P::XROW != 0) {
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    if (c + v < P::C)
                        dx[Conv<P>::x_offset(image, channel + v, row, col)] = sum[i][j + v];
            } else {
                store_fours<P::C % 4 == 0>(dx + Conv<P>::x_offset(image, channel, row, col),
                                           &sum[i][j], c, P::C);
            }
        }
    }
}
