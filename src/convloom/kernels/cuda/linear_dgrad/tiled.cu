// dx[n,i] = sum over o of dy[n,o] * w[o,i], behind the activation that made a (MASK)
//
// A block makes a tile of BM samples x BN inputs (device/tile.cuh).
// Against fused: an element of dy or w is read from global memory once for a whole tile, not once
// for each product.
// Limit: 2*N*I*O FLOPs; with few outputs, the bytes of dx.
#include "device/activation.cuh"
#include "device/tile.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    linear_dgrad_tiled(const f32* dy, const f32* w, const f32* a, f32* dx, i64 n) {
    using T = Tile<P>;
    constexpr i64 COLS = ceil_div(P::I, P::BN);
    const i64 first_row = blockIdx.x / COLS * P::BM, first_col = blockIdx.x % COLS * P::BN;
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, DepthInRows<P::O>{dy, n}, first_row,
                      DepthInColumns<P::I>{w, i32(P::O)}, first_col, P::O);
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 sample = first_row + T::row(i);
        if (sample >= n) continue;
#pragma unroll
        for (int j = 0; j < T::TN; j += 4) {
            const i64 col = first_col + T::col(j), at = sample * P::I + col;
            if constexpr (P::MASK != 0) {
                constexpr int VEC = P::I % 4 == 0 ? 4 : 1;
#pragma unroll
                for (int v = 0; v < 4; v += VEC) {
                    f32 kept[VEC];
                    load_or_zero(kept, a, at + v, col + v < P::I);
#pragma unroll
                    for (int u = 0; u < VEC; ++u)
                        sum[i][j + v + u] = gated<P>(sum[i][j + v + u], kept[u]);
                }
            }
            store_fours<P::I % 4 == 0>(dx + at, &sum[i][j], col, P::I);
        }
    }
}
