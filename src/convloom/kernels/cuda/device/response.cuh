// Local response normalisation: the arithmetic of one element, and windows of pixels.
//
// With the sum of squares s over a window: d = k + scale s, y = x d^-beta, and for the gradient
// t = dy x d^(-beta-1).
#pragma once

#include "device/functions.cuh"
#include "device/index.cuh"

struct Response {
    f32 k, scale, beta;

    __device__ __forceinline__ f32 denominator(f32 sum) const { return fmaf(scale, sum, k); }
    // d^-beta
    __device__ __forceinline__ f32 factor(f32 d) const {
        return exponential(-beta * natural_log(d));
    }
    // d^-beta; with QUARTERS = 3, beta is 3/4, and two roots do where d is positive and finite.
    template <i64 QUARTERS>
    __device__ __forceinline__ f32 quick_factor(f32 d) const {
        if constexpr (QUARTERS == 3) {
            const f32 root = rsqrtf(d);
            if (d > 0.0f && root > 0.0f) return root * (root * rsqrtf(root));
        }
        return factor(d);
    }
};

// The window around channel c: LOW neighbours below and HIGH above; or its block of BLOCK channels.
template <i64 LOW, i64 HIGH, i64 BLOCK, class Value>
__device__ __forceinline__ f32 channel_window(i64 c, i64 channels, Value value) {
    i64 first = greatest(c - LOW, 0), last = least(c + HIGH + 1, channels);
    if constexpr (BLOCK != 0) {
        first = c / BLOCK * BLOCK;
        last = least(first + BLOCK, channels);
    }
    f32 sum = 0.0f;
    for (i64 i = first; i < last; ++i) sum += value(i);
    return sum;
}

// Sum of value(offset) over a window of pixels around element i of images (n, H, W, C), clipped.
template <i64 LOW, i64 HIGH, class Value>
__device__ __forceinline__ f32 pixel_window(i64 i, i64 channels, i64 height, i64 width, i64* cells,
                                            Value value) {
    const i64 c = i % channels, pixel = i / channels, col = pixel % width, line = pixel / width;
    const i64 row = line % height, image = line / height * height;
    const i64 top = greatest(row - LOW, 0), bottom = least(row + HIGH + 1, height);
    const i64 left = greatest(col - LOW, 0), right = least(col + HIGH + 1, width);
    f32 sum = 0.0f;
    for (i64 r = top; r < bottom; ++r)
        for (i64 s = left; s < right; ++s) sum += value(((image + r) * width + s) * channels + c);
    if (cells) *cells = (bottom - top) * (right - left);
    return sum;
}
