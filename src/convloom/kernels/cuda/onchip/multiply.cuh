// Products of a warp's tiles: acc[m][n] += 16 pixels x 16 products by 16 products x 8 outputs; of
// tf32 a step is 8 products.
#pragma once

#include "onchip/shape.cuh"

template <int MT, int NT>
using Tiles = f32[MT][NT][4];

template <int MT, int NT>
__device__ __forceinline__ void clear(Tiles<MT, NT>& acc) {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;
}

// The fragments of NT tiles at one step; `fragments` points to the lane's part of the first.
template <int NT>
__device__ __forceinline__ void load_fragments(u32 (&b)[NT][2], const Bytes* fragments) {
#pragma unroll
    for (int n = 0; n < NT; n += NT % 2 == 0 ? 2 : 1) {
        const Bytes* from = fragments + fragment_at<NT>(n, 0);
        if constexpr (NT % 2 == 0) {
            const uint4 four = at<uint4>(from);
            b[n][0] = four.x, b[n][1] = four.y, b[n + 1][0] = four.z, b[n + 1][1] = four.w;
        } else {
            const uint2 two = at<uint2>(from);
            b[n][0] = two.x, b[n][1] = two.y;
        }
    }
}

// A convolution over maps in planes: R rows of S taps, PLANES planes; taps lie ROW_STEP and
// COL_STEP bytes apart. place[m] is where the lane's pixel of tile m meets the first tap: lanes
// l and l + 16 give pixel l % 16 of the tile. `fragments` is the lane's part of the first step's
// first tile; a step has TILES.
template <class F, int R, int S, int PLANES, int PLANE, int ROW_STEP, int COL_STEP, int TILES,
          int MT, int NT>
__device__ __forceinline__ void multiply_taps(Tiles<MT, NT>& acc, const Bytes* const (&place)[MT],
                                              const Bytes* fragments) {
    constexpr int SLICES = S * PLANES, STEPS = (SLICES + 1) / 2;
    constexpr int UNROLL = R * STEPS <= 32 ? R : 1;
    const auto slice = [](int i) { return i / PLANES * COL_STEP + i % PLANES * PLANE; };
    // Most steps' second slice lies this far from the first: what lanes then add are constants.
    const int apart = SLICES > 1 ? slice(1) : 0;
    const bool upper = fresh_lane() >= 16;
    const Bytes* from[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) from[m] = place[m] + (upper ? apart : 0);
#pragma unroll UNROLL
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int first = 2 * step, second = 2 * step + 1 < SLICES ? 2 * step + 1 : 2 * step;
            const int low = slice(first), high = slice(second);
            u32 b[NT][2];
            load_fragments(b, fragments + 256 * TILES * (r * STEPS + step));
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                u32 a[4];
                if (high - low == apart)
                    ldmatrix_x4(a, from[m] + (r * ROW_STEP + low));
                else
                    ldmatrix_x4(a, place[m] + (r * ROW_STEP + (upper ? high : low)));
#pragma unroll
                for (int n = 0; n < NT; ++n) F::multiply(acc[m][n], a, b[n]);
            }
        }
    }
}
