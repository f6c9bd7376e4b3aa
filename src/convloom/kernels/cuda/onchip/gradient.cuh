// The gradient of what a convolution hands on becomes that of its products: it passes the
// activation, and behind a pool it goes to each window's winner, zeros to the other cells, or a
// quarter of it to each cell that passed.
#pragma once

#include "device/activation.cuh"
#include "onchip/shape.cuh"

template <class P, int I>
struct ConvGradient {
    using Conv = ConvStage<P, I>;
    using F = Format<P>;
    using Pair = typename F::Pair;
    static constexpr int WINDOWS = Conv::YH * Conv::YW;

    // The two neighbouring channels that a lane has of a tile of eight, of pixel (y, x) of the map
    // handed on.
    __device__ __forceinline__ static void store(Bytes* map, int tile, int y, int x, int lane,
                                                 f32 even, f32 odd) {
        const int plane = tile * Conv::PLANES + F::plane(lane), byte = F::byte_in_pixel(lane);
        if (plane >= Conv::KP) return;
        if constexpr (Conv::AVERAGE) {
            even *= 0.25f;
            odd *= 0.25f;
        } else if constexpr (Conv::ACT != NONE) {
            const Pair z = at<Pair>(map + Conv::Z + plane * Conv::ZPLANE +
                                    16 * (y * Conv::ZPITCH + x) + byte);
            even = passed<Conv>(even, F::even(z));
            odd = passed<Conv>(odd, F::odd(z));
        }
        const Pair gradient = F::pair(even, odd);
        Bytes* place = map + Conv::DY + plane * Conv::DYPLANE + byte;
        if constexpr (!Conv::POOL) {
            at<Pair>(place + 16 * (y * Conv::UH * Conv::DYPITCH + x * Conv::UW)) = gradient;
        } else {
            const u32 codes = at<u16>(map + Conv::CODE + 2 * (lane % 4) +
                                      8 * (tile * WINDOWS + y * Conv::YW + x));
            const u32 first = codes & 0xffu, second = codes >> 8;
#pragma unroll
            for (u32 cell = 0; cell < 4; ++cell) {
                const int row = (2 * y + int(cell / 2)) * Conv::UH;
                const int col = (2 * x + int(cell % 2)) * Conv::UW;
                const bool low = Conv::AVERAGE ? (first >> cell & 1) != 0 : first == cell;
                const bool high = Conv::AVERAGE ? (second >> cell & 1) != 0 : second == cell;
                at<Pair>(place + 16 * (row * Conv::DYPITCH + col)) = F::chosen(gradient, low, high);
            }
        }
    }
};
