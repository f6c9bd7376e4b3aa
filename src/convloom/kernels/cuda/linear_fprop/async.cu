// The layer of the tiled rung, with asynchronous copies (device/async_tile.cuh), for inputs that
// are read four at a time.
//
// Against tiled: operands do not pass through registers, and are asked for STAGES - 1 steps ahead;
// a thread reads four depths of a row at once, so tiles need not be transposed.
// Limit: as tiled. Without the 1 in its launch bounds ptxas would spill to fit more blocks.
#include "device/activation.cuh"
#include "device/async_tile.cuh"

template <class P>
__global__ void __launch_bounds__(Tile<P>::THREADS, 1)
    linear_fprop_async(const f32* x, const f32* w, const f32* bias, f32* y, i64 n) {
    using T = AsyncTile<P>;
    constexpr i64 COLS = ceil_div(P::O, P::BN);
    const i64 first_row = blockIdx.x / COLS * P::BM, first_col = blockIdx.x % COLS * P::BN;
    f32 sum[T::TM][T::TN];
    multiply_async<P>(sum, DepthInRows<P::I>{x, n}, first_row, DepthInRows<P::I>{w, P::O},
                      first_col, i32(P::I));
#pragma unroll
    for (int j = 0; j < T::TN; ++j) {
        const i64 o = first_col + T::col(j);
        if (o >= P::O) continue;
        const f32 add = P::BIAS != 0 ? bias[o] : 0.0f;
#pragma unroll
        for (int i = 0; i < T::TM; ++i) {
            const i64 sample = first_row + T::row(i);
            const f32 value = P::BIAS != 0 ? sum[i][j] + add : sum[i][j];
            if (sample < n) y[sample * P::O + o] = activated<P>(value);
        }
    }
}
