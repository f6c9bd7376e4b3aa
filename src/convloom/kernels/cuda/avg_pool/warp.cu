// y = sum of each window's cells / cells counted (or DIVISOR), for windows of many cells
//
// A block takes 32 neighbouring channels of one window, channels last: its eight warps walk the
// window's cells in turn, and their sums are added in order through shared memory.
// Against tiled: a global pool has few outputs, and a thread for each would wait for its loads.
// Limit: memory.
#include "device/pool.cuh"

template <class P>
__global__ void __launch_bounds__(256) avg_pool_warp(const f32* x, f32* y) {
    constexpr int WARPS = 8;
    constexpr i64 BLOCKS = ceil_div(P::C, 32);  // of channels
    using Rows = RowWindows<P>;
    using Cols = ColWindows<P>;
    __shared__ f32 part[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 window = blockIdx.x / BLOCKS, image = window / (P::OH * P::OW);
    const i32 p = i32(window / P::OW % P::OH), q = i32(window % P::OW);
    const i64 channel = blockIdx.x % BLOCKS * 32 + lane;
    const i64 top = greatest(Rows::start(p), 0), left = greatest(Cols::start(q), 0);
    const i64 bottom = least(Rows::start(p) + i64(Rows::last_tap(p)), P::H);
    const i64 across = least(Cols::start(q) + i64(Cols::last_tap(q)), P::W) - left;
    f32 sum = 0.0f;
    if (channel < P::C)
        for (i64 cell = warp; cell < (bottom - top) * across; cell += WARPS)
            sum += x[Pool<P>::x_offset(image, channel, top + cell / across, left + cell % across)];
    part[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || channel >= P::C) return;
    for (int other = 1; other < WARPS; ++other) sum += part[other][lane];
    y[Pool<P>::y_offset(image, channel, p, q)] = sum / Pool<P>::divisor(p, q);
}
