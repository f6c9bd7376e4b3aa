// 2x2 max-pooling of stride 2 right behind a convolution, bias and activation (ACT).
#pragma once

#include "device/activation.cuh"
#include "device/pool.cuh"

// What a window takes of the sums cell(0) to cell(3), bias included, and the number of the cell; the
// first of equals wins. With NUMBERS none of them is NaN.
template <class P, bool NUMBERS = false, class Cell>
__device__ __forceinline__ f32 pooled(const Cell& cell, u32& winner) {
    // A rectifier leaves the order of what is positive: it may come last.
    constexpr bool LATE = P::ACT == RELU;
    f32 best = LATE ? cell(0) : activated<P>(cell(0));
    winner = 0;
#pragma unroll
    for (int i = 1; i < 4; ++i) {
        const f32 value = LATE ? cell(i) : activated<P>(cell(i));
        if (NUMBERS ? value <= best : !replaces(value, best)) continue;
        best = value;
        winner = i;
    }
    if (LATE && best <= 0.0f) best = 0.0f, winner = 0;
    return best;
}
