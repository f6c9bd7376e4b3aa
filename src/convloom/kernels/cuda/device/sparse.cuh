// Gradients of a convolution that 2x2 pooling of stride 2 followed: of the four cells of a window
// only the winner has a gradient, so three products in four are left out.
//
// Lanes stand on neighbouring channels: LANES of them share a window, a warp holds AT_ONCE windows.
// A filter's winner is then the same for all lanes of a window, and one branch picks among four
// fixed pieces of code whose operands all lie in registers. Served are stride 1 and filters of up
// to 3x3, whose windows meet a patch of (R+1) x (S+1) inputs.
#pragma once

#include "device/conv.cuh"
#include "device/reduce.cuh"

template <class P>
struct Sparse {
    static constexpr int LANES = row_lanes(P::C), AT_ONCE = 32 / LANES;
    static constexpr int R = P::R, S = P::S, TAPS = R * S;
    static constexpr i64 ROWS = Conv<P>::POOL_ROWS, COLS = Conv<P>::POOL_COLS;
    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::R <= 3 && P::S <= 3 && P::C % LANES == 0 && P::K % 4 == 0);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);

    using Patch = f32[R + 1][S + 1];

    // sum[tap] += gradient * patch, seen from cell CELL of the window.
    template <int CELL>
    __device__ __forceinline__ static void gather(f32 (&sum)[TAPS], const Patch& patch,
                                                  f32 gradient) {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int s = 0; s < S; ++s)
                sum[r * S + s] =
                    fmaf(gradient, patch[CELL / 2 + r][CELL % 2 + s], sum[r * S + s]);
    }
    __device__ __forceinline__ static void gather(f32 (&sum)[TAPS], const Patch& patch,
                                                  f32 gradient, u32 cell) {
        switch (cell) {
            case 0: gather<0>(sum, patch, gradient); break;
            case 1: gather<1>(sum, patch, gradient); break;
            case 2: gather<2>(sum, patch, gradient); break;
            default: gather<3>(sum, patch, gradient); break;
        }
    }

    // patch += gradient * weight, seen from cell CELL of the window.
    template <int CELL>
    __device__ __forceinline__ static void scatter(Patch& patch, const f32 (&weight)[TAPS],
                                                   f32 gradient) {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int s = 0; s < S; ++s)
                patch[CELL / 2 + r][CELL % 2 + s] =
                    fmaf(gradient, weight[r * S + s], patch[CELL / 2 + r][CELL % 2 + s]);
    }
    __device__ __forceinline__ static void scatter(Patch& patch, const f32 (&weight)[TAPS],
                                                   f32 gradient, u32 cell) {
        switch (cell) {
            case 0: scatter<0>(patch, weight, gradient); break;
            case 1: scatter<1>(patch, weight, gradient); break;
            case 2: scatter<2>(patch, weight, gradient); break;
            default: scatter<3>(patch, weight, gradient); break;
        }
    }
};

// The gradients of four neighbouring filters at one window, and the cells that won it, one a byte.
struct FourWinners {
    f32 gradient[4];
    u32 cells;

    __device__ __forceinline__ static FourWinners load(const f32* dyp, const u8* index, i64 at) {
        const float4 four = *reinterpret_cast<const float4*>(dyp + at);
        return {{four.x, four.y, four.z, four.w}, *reinterpret_cast<const u32*>(index + at)};
    }
    __device__ __forceinline__ u32 cell(int filter) const { return cells >> 8 * filter & 3; }
};
