// The gradient of what a convolution hands on becomes that of its products: it passes the rectifier
// where that passed, and behind a pool it goes to each window's winner, zeros to the other cells, or a quarter to each cell
// that passed.
#pragma once

#include "onchip/shape.cuh"

template <class P, int I>
struct ConvGradient {
    using Conv = ConvStage<P, I>;
    static constexpr int WINDOWS = Conv::YH * Conv::YW;

    // Two neighbouring channels (`pair` of the plane's four) of pixel (y, x) of the map handed on.
    __device__ __forceinline__ static void store(Bytes* map, int plane, int y, int x, int pair,
                                                 u32 gradient) {
        const Bytes* z = map + Conv::Z + plane * Conv::ZPLANE + 16 * (y * Conv::ZPITCH + x);
        if constexpr (Conv::AVERAGE)
            gradient = cvt_bf16x2(0.25f * bf16_low(gradient), 0.25f * bf16_high(gradient));
        else if constexpr (Conv::RELU)
            gradient = masked_pair(gradient, at<u32>(z + 4 * pair));
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
