// Gradient of a locally connected layer's input as a matrix product for every input pixel
//
// Rows are images, columns the channels of a group, the depth is (tap, filter): the taps that the
// pixel's residue class modulo the stride has met, each with the filters of the output it met.
// A block makes a tile of BM images x BN channels (device/tile.cuh). Filters are KRSC.
// Against naive: an element is read from global memory once for a whole tile.
// Limit: the bytes of the filters, which only images share.
#include "device/local.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    local_dgrad_tiled(const f32* dy, const f32* w, f32* dx, i64 n) {
    using T = Tile<P>;
    using Class = ResidueClass<P>;
    constexpr i64 COLS = ceil_div(P::C, P::BN), PIXELS = P::H * P::W;
    const i64 first_col = blockIdx.x % COLS * P::BN, group = blockIdx.x / COLS % P::G;
    const i64 pixel = blockIdx.x / (COLS * P::G) % PIXELS;
    const i64 first_row = blockIdx.x / (COLS * P::G * PIXELS) * P::BM;
    const i32 row = i32(pixel / P::W), col = i32(pixel % P::W);
    const Class part = Class::of(row % P::UH * P::UW + col % P::UW);
    const i64 number = row / P::UH * Class::WIDTH + col / P::UW;
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, LocalOutputGradients<P>{{dy, nullptr, n, group, part}, number},
                      first_row, LocalFiltersByChannel<P>{w, group, part, row, col}, first_col,
                      part.taps() * i32(Conv<P>::GROUP));
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 image = first_row + T::row(i);
        if (image >= n) continue;
#pragma unroll
        for (int j = 0; j < T::TN; ++j) {
            const i64 c = first_col + T::col(j);
            if (c < P::C) dx[Conv<P>::x_offset(image, group * P::C + c, row, col)] = sum[i][j];
        }
    }
}
