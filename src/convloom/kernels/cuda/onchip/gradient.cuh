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
    // Bytes from a pixel of the gradient to the next row's and column's.
    static constexpr int ROW = 16 * Conv::UH * Conv::DYPITCH, COL = 16 * Conv::UW;
    static constexpr int CELLS = Conv::POOL ? 2 : 1;  // of a pixel handed on, each way

    // The two neighbouring channels that a lane has of a tile of eight, of pixel number `pixel` of
    // the map handed on.
    __device__ __forceinline__ static void store(Bytes* map, int tile, unsigned pixel, int lane,
                                                 f32 even, f32 odd) {
        const int plane = tile * Conv::PLANES + F::plane(lane), byte = F::byte_in_pixel(lane);
        if (plane >= Conv::KP) return;
        // So written, maps whose rows lie together need no division.
        const int at = int(pixel), row = int(pixel / Conv::YW);
        put(map,
            plane * Conv::DYPLANE + CELLS * (at * COL + row * (ROW - Conv::YW * COL)) + byte,
            plane * Conv::ZPLANE + 16 * (at + row * (Conv::ZPITCH - Conv::YW)) + byte,
            codes(map, 8 * (tile * WINDOWS + at) + 2 * (lane % 4)), (lane & 16) != 0, even, odd);
    }

    // The codes of two neighbouring channels.
    __device__ __forceinline__ static u32 codes(const Bytes* map, int place) {
        return Conv::POOL ? at<u16>(map + Conv::CODE + place) : 0;
    }

    // Those whose gradient and value lie at these places of their maps. Lanes with `right` begin
    // with the right cells: those of 128 bytes further on, as these are in the same banks.
    __device__ __forceinline__ static void put(Bytes* map, int dy, int z, u32 codes, bool right,
                                               f32 even, f32 odd) {
        constexpr bool GATED = Conv::AVERAGE || (Conv::POOL && Conv::ACT == RELU);  // by the codes
        if constexpr (Conv::AVERAGE) {
            even *= 0.25f;
            odd *= 0.25f;
        }
        Pair gradient = F::pair(even, odd);
        if constexpr (!GATED && Conv::ACT != NONE) {
            const Pair value = at<Pair>(map + Conv::Z + z);
            if constexpr (Conv::ACT == RELU)
                gradient = F::passed(gradient, value);
            else
                gradient = F::pair(passed<Conv>(even, F::even(value)),
                                   passed<Conv>(odd, F::odd(value)));
        }
        Bytes* place = map + Conv::DY + dy;
        if constexpr (!Conv::POOL) {
            at<Pair>(place) = gradient;
        } else {
            // Bits of cells 1 and 0, then 3 and 2, become signs of a word's lower and upper half.
            const u32 upper = codes * 0x800040u, lower = codes * 0x200010u;
            Bytes* other = place + (right ? 0 : COL);
            place += right ? COL : 0;
            at<Pair>(place) = F::signed_ones(gradient, upper, !right);
            at<Pair>(other) = F::signed_ones(gradient, upper, right);
            at<Pair>(place + ROW) = F::signed_ones(gradient, lower, !right);
            at<Pair>(other + ROW) = F::signed_ones(gradient, lower, right);
        }
    }
};
