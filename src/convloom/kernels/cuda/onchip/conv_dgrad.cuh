// The gradient of a convolution's input: a convolution of the output's gradient, which lies on the
// input's grid with zeros between and around. What comes out goes on to the convolution before
// (gradient.cuh). Tiles as in conv_forward.cuh, over the pixels of the input that the block's strip
// falls on (strip.cuh).
#pragma once

#include "onchip/gradient.cuh"
#include "onchip/multiply.cuh"
#include "onchip/strip.cuh"
#include "onchip/weights.cuh"

template <class P, int I>
struct ConvDgrad {
    using Conv = ConvStage<P, I>;
    using Own = Strip<P, I - 1>;
    static constexpr int MT = Conv::DMT, NT = Conv::DNT, PIXELS = Own::HANDED_ON * Conv::W;
    static constexpr int M_TILES = (PIXELS + 15) / 16, M_GROUPS = (M_TILES + MT - 1) / MT;
    static constexpr int UNITS = M_GROUPS * Conv::DN_GROUPS;

    __device__ static void run(Bytes* shared) {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        const Rows rows = Own::handed_on(Own::rank());
        const int begin = rows.begin * Conv::W, end = rows.end * Conv::W;
        for (int u = warp; u < UNITS * int(P::IMAGES); u += int(P::THREADS) / 32) {
            const int image = image_of<P>(u, UNITS), unit = u - image * UNITS;
            Bytes* map = region<P>(shared, image);
            const int first = unit / Conv::DN_GROUPS * MT, n_tile = unit % Conv::DN_GROUPS * NT;
            const Bytes* place[MT];
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                // Behind the last lies the last; what it gives is not used.
                const unsigned pixel = least(begin + (first + m) * 16 + lane % 16, end - 1);
                const int at = int(pixel) + int(pixel / Conv::W) * (Conv::DYPITCH - Conv::W);
                place[m] = map + Conv::DY + 16 * (at + Conv::PADH * Conv::DYPITCH + Conv::PADW);
            }
            Tiles<MT, NT> acc;
            clear(acc);
            multiply_taps<Format<P>, Conv::R, Conv::S, Conv::KP, Conv::DYPLANE, -16 * Conv::DYPITCH, -16,
                          ConvWeights<P, I>::D_TILES>(
                acc, place, shared + Conv::TRANSPOSED + fragment_at<NT>(n_tile, lane));
            const int from = begin + first * 16;
            if ((P::SPLIT == 1 && PIXELS % (16 * MT) == 0) || from + 16 * MT <= end)
                store<true>(acc, map, n_tile, from, end, lane);
            else
                store<false>(acc, map, n_tile, from, end, lane);
        }
    }

    // Of pixels from number `from` on; if not WHOLE, only of those before `end`.
    template <bool WHOLE>
    __device__ __forceinline__ static void store(const Tiles<MT, NT>& acc, Bytes* map, int n_tile,
                                                 int from, int end, int lane) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned pixel = from + m * 16 + lane / 4 + 8 * half;
                if (!WHOLE && pixel >= unsigned(end)) continue;
#pragma unroll
                for (int n = 0; n < NT; ++n)
                    ConvGradient<P, I - 1>::store(map, n_tile + n, pixel, lane,
                                                  acc[m][n][2 * half], acc[m][n][2 * half + 1]);
            }
    }
};
