// dw[o,i] = sum over n of dy[n,o] * x[n,i], and with BIAS db[o] = sum over n of dy[n,o]
//
// A block makes a tile of BM outputs x BN inputs (device/tile.cuh) from one chunk of the samples;
// the bias is one more input that is always 1. Chunk c writes at dw + c * stride and db +
// c * stride: where there are several, these are partial sums, which sum_partials adds up in order.
// Against fused: an element of x or dy is read once for a whole tile; and a large batch makes more
// blocks, not longer ones.
// Limit: 2*N*I*O FLOPs; with a small batch, the bytes of dw.
#include "device/tile.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    linear_wgrad_tiled(const f32* x, const f32* dy, f32* dw, f32* db, i64 n, i64 chunk,
                       i64 stride) {
    using T = Tile<P>;
    constexpr i64 ROWS = ceil_div(P::O, P::BM), COLS = ceil_div(P::I + P::BIAS, P::BN);
    const i64 first_col = blockIdx.x % COLS * P::BN;
    const i64 first_row = blockIdx.x / COLS % ROWS * P::BM;
    const i64 part = blockIdx.x / (ROWS * COLS), first = part * chunk;
    const i32 depth = i32(least(chunk, n - first));
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, DepthInColumns<P::O>{dy + first * P::O, depth}, first_row,
                      DepthInColumns<P::I, P::BIAS != 0>{x + first * P::I, depth}, first_col,
                      depth);
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 o = first_row + T::row(i);
        if (o >= P::O) continue;
#pragma unroll
        for (int j = 0; j < T::TN; j += 4) {
            const i64 col = first_col + T::col(j);
            store_fours<P::I % 4 == 0>(dw + part * stride + o * P::I + col, &sum[i][j], col, P::I);
            if constexpr (P::BIAS != 0) {
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    if (col + v == P::I) db[part * stride + o] = sum[i][j + v];
            }
        }
    }
}
