// The gradient of what a convolution hands on becomes that of its products: it passes the
// activation, and behind a pool it goes to each window's winner, zeros to the other cells, or a
// quarter of it to each cell that passed.
#pragma once

#include "device/activation.cuh"
#include "onchip/shape.cuh"

template <class P, int I>
struct ConvGradient {
    using Conv = ConvStage<P, I>;
    static constexpr int WINDOWS = Conv::YH * Conv::YW;

    // Two neighbouring channels (`pair` of the plane's four) of pixel (y, x) of the map handed on.
    __device__ __forceinline__ static void store(Bytes* map, int plane, int y, int x, int pair,
                                                 f32 even, f32 odd) {
        if constexpr (Conv::AVERAGE) {
            even *= 0.25f;
            odd *= 0.25f;
        } else if constexpr (Conv::ACT != NONE) {
            const u32 z = at<u32>(map + Conv::Z + plane * Conv::ZPLANE +
                                  16 * (y * Conv::ZPITCH + x) + 4 * pair);
            even = passed<Conv>(even, bf16_low(z));
            odd = passed<Conv>(odd, bf16_high(z));
        }
        const u32 gradient = cvt_bf16x2(even, odd);
        Bytes* place = map + Conv::DY + plane * Conv::DYPLANE + 4 * pair;
        if constexpr (!Conv::POOL) {
            at<u32>(place + 16 * (y * Conv::UH * Conv::DYPITCH + x * Conv::UW)) = gradient;
        } else {
            const u32 codes = at<Bf16>(map + Conv::CODE + 2 * pair +
                                       8 * (plane * WINDOWS + y * Conv::YW + x));
            const u32 first = codes & 0xffu, second = codes >> 8;
#pragma unroll
            for (u32 cell = 0; cell < 4; ++cell) {
                const int row = (2 * y + int(cell / 2)) * Conv::UH;
                const int col = (2 * x + int(cell % 2)) * Conv::UW;
                const bool low = Conv::AVERAGE ? (first >> cell & 1) != 0 : first == cell;
                const bool high = Conv::AVERAGE ? (second >> cell & 1) != 0 : second == cell;
                at<u32>(place + 16 * (row * Conv::DYPITCH + col)) =
                    (low ? gradient & 0xffffu : 0u) | (high ? gradient & 0xffff0000u : 0u);
            }
        }
    }
};
