// y[n,o] = b[o] + sum over i of x[n,i] * w[o,i], then the activation (ACT)
//
// A block makes a tile of BM samples x BN outputs (device/tile.cuh).
// Against fused: an element of x or w is read from global memory once for a whole tile, not once
// for each product.
// Limit: 2*N*I*O FLOPs where the tiles fill the GPU; each step reads BM + BN elements from shared
// memory for BM*BN products.
#include "device/activation.cuh"
#include "device/tile.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS)
    linear_fprop_tiled(const f32* x, const f32* w, const f32* bias, f32* y, i64 n) {
    using T = Tile<P>;
    constexpr i64 COLS = ceil_div(P::O, P::BN);
    const i64 first_row = blockIdx.x / COLS * P::BM, first_col = blockIdx.x % COLS * P::BN;
    f32 sum[T::TM][T::TN];
    multiply_tiles<P>(sum, DepthInRows<P::I>{x, n}, first_row, DepthInRows<P::I>{w, P::O},
                      first_col, P::I);
#pragma unroll
    for (int i = 0; i < T::TM; ++i) {
        const i64 sample = first_row + T::row(i);
        if (sample >= n) continue;
#pragma unroll
        for (int j = 0; j < T::TN; j += 4) {
            const i64 o = first_col + T::col(j);
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                if (P::BIAS != 0 && o + v < P::O) sum[i][j + v] += bias[o + v];
                sum[i][j + v] = activated<P>(sum[i][j + v]);
            }
            store_fours<P::O % 4 == 0>(y + sample * P::O + o, &sum[i][j], o, P::O);
        }
    }
}
