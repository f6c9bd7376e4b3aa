// y[n,k,p,q] = sum over c,r,s of x * w[p,q,k,c,r,s] as a matrix product for every output pixel
//
// Rows are images, columns the filters of a group at the pixel, the depth is (r, s, c); a block
// makes a tile of BM images x BN filters (device/tile.cuh). Filters are KRSC.
// Against naive: an element is read from global memory once for a whole tile.
// Limit: the bytes of the filters, which only images share; 2*C*R*S FLOPs an output.
#include "device/local.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    local_fprop_tiled(const f32* x, const f32* w, f32* y, i64 n) {
    using T = Tile<P>;
    constexpr i64 GROUP = Conv<P>::GROUP, COLS = ceil_div(GROUP, P::BN);
    const i64 first_col = blockIdx.x % COLS * P::BN, group = blockIdx.x / COLS % P::G;
    const i64 pixel = blockIdx.x / (COLS * P::G) % Local<P>::PIXELS;
    const i64 first_row = blockIdx.x / (COLS * P::G * Local<P>::PIXELS) * P::BM;
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, LocalPatches<P>{{x, n, group}, pixel}, first_row,
                      LocalFilters<P>{w, pixel * P::K + group * GROUP}, first_col,
                      i32(Conv<P>::DEPTH));
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 image = first_row + T::row(i);
        if (image >= n) continue;
#pragma unroll
        for (int j = 0; j < T::TN; ++j) {
            const i64 col = first_col + T::col(j);
            if (col >= GROUP) continue;
            y[Conv<P>::y_offset(image, group * GROUP + col, pixel / P::OW, pixel % P::OW)] =
                sum[i][j];
        }
    }
}
