// Two pixels of the products of a block's strip that go on without divisions: one of the rows of
// its first half, and one as far behind it in the others; where they lie in the output's gradient,
// and where their windows begin in the input.
#pragma once

#include "onchip/strip.cuh"

template <class P, int I>
struct PixelWalk {
    using Conv = ConvStage<P, I>;
    using Own = Strip<P, I>;
    static constexpr int ROWS = (Own::PRODUCTS + 1) / 2;  // of the first half
    static constexpr int HALF = ROWS * Conv::OW, PIXELS = Own::PRODUCTS * Conv::OW;
    // Bytes of a pixel of the gradient, and of the input.
    static constexpr int PIXEL = 16, INPUT = Conv::GATHER ? Format<P>::BYTES : PIXEL;
    // From one half to the other.
    static constexpr int FAR = PIXEL * ROWS * Conv::UH * Conv::DYPITCH;
    static constexpr int FAR_INPUT = INPUT * ROWS * Conv::UH * Conv::XPITCH;

    // Of which half a lane has its pixel, of the gradient and of the input.
    struct Half {
        bool gradient, input;
    };
    const Bytes* gradient;
    const Bytes* input;
    // The column; how far the pixel in the other half is, for lanes that have the first half's.
    int column, far, far_input;

    __device__ __forceinline__ const Bytes* gradient_of(int half) const {
        return gradient + half * far;
    }
    __device__ __forceinline__ const Bytes* input_of(int half) const {
        return input + half * far_input;
    }

    // Pixel number `pixel` of a half, of maps that begin there.
    __device__ __forceinline__ void begin(const Bytes* gradients, const Bytes* inputs, int pixel,
                                          Half half) {
        const int row = Own::first(Own::rank()) + int(unsigned(pixel) / Conv::OW);
        column = int(unsigned(pixel) % Conv::OW);
        gradient = gradients + PIXEL * (row * Conv::UH * Conv::DYPITCH + column * Conv::UW) +
                   (half.gradient ? FAR : 0);
        input = inputs +
                INPUT * ((row * Conv::UH - Conv::PADH) * Conv::XPITCH + column * Conv::UW -
                         Conv::PADW) +
                (half.input ? FAR_INPUT : 0);
        far = FAR, far_input = FAR_INPUT;
    }

    // By BY pixels, from row to row.
    template <int BY>
    __device__ __forceinline__ void go_on() {
        constexpr int DOWN = BY / Conv::OW, RIGHT = BY % Conv::OW;
        const bool beyond = RIGHT > 0 && column >= Conv::OW - RIGHT;
        column += beyond ? RIGHT - Conv::OW : RIGHT;
        gradient += beyond ? way<Conv::DYPITCH, PIXEL>(DOWN + 1, RIGHT - Conv::OW)
                           : way<Conv::DYPITCH, PIXEL>(DOWN, RIGHT);
        input += beyond ? way<Conv::XPITCH, INPUT>(DOWN + 1, RIGHT - Conv::OW)
                        : way<Conv::XPITCH, INPUT>(DOWN, RIGHT);
    }
    // To a pixel that the caller knows to be there.
    template <int DOWN, int RIGHT>
    __device__ __forceinline__ void move() {
        gradient += way<Conv::DYPITCH, PIXEL>(DOWN, RIGHT);
        input += way<Conv::XPITCH, INPUT>(DOWN, RIGHT);
    }
    // Bytes of a map whose rows lie PITCH pixels apart.
    template <int PITCH, int BYTES>
    __device__ __forceinline__ static constexpr int way(int down, int right) {
        return BYTES * (down * Conv::UH * PITCH + right * Conv::UW);
    }

    // Whether both halves are as large and all of them the block's, of each block of an image.
    __host__ __device__ static constexpr bool even() {
        for (int rank = 0; rank < Own::SPLIT; ++rank) {
            const Rows rows = Own::products(rank);
            if (rows.begin != Own::first(rank) || rows.end - rows.begin != Own::PRODUCTS)
                return false;
        }
        return Own::PRODUCTS % 2 == 0;
    }
    static constexpr bool EVEN = even();

    // Replace pixels that are not the block's: by a gradient of zero, which lies before the first,
    // and an input that is there.
    __device__ __forceinline__ void check(const Bytes* gradients, const Bytes* inputs, int pixel,
                                          Half half) {
        const Rows rows = Own::products(Own::rank());
        const int first = Own::first(Own::rank());
        const int begin = (rows.begin - first) * Conv::OW, end = (rows.end - first) * Conv::OW;
        const auto own = [&](bool other) {
            const int i = pixel + (other ? HALF : 0);
            return pixel < HALF && i >= begin && i < end;
        };
        const auto there = [&](bool other) {
            return pixel < HALF && pixel + (other ? HALF : 0) < PIXELS;
        };
        PixelWalk start;
        start.begin(gradients, inputs, 0, {false, false});
        const Bytes* zero = gradients - PIXEL;
        const Bytes* other = own(true) ? gradient + FAR : zero;
        if (!own(half.gradient)) gradient = zero;
        if (!there(half.input)) input = start.input;
        far = int(other - gradient);
        far_input = there(true) ? FAR_INPUT : 0;
    }
};
