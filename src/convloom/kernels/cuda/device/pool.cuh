// Pooling windows. P holds C channels, input H x W, output OH x OW, kernel KH x KW, stride
// UH x UW, padding PH x PW, dilation DH x DW, and XROW, YROW: 1 for NCHW, 0 for NHWC.
#pragma once

#include "device/index.cuh"

template <class P>
struct Pool {
    static constexpr i64 X_SIZE = P::C * P::H * P::W;
    static constexpr i64 Y_SIZE = P::C * P::OH * P::OW;

    __device__ static Place x_place(i64 i) { return place_of<P::C, P::H, P::W, P::XROW != 0>(i); }
    __device__ static Place y_place(i64 i) {
        return place_of<P::C, P::OH, P::OW, P::YROW != 0>(i);
    }
    __device__ static i64 x_offset(i64 image, i64 channel, i64 row, i64 col) {
        return image * X_SIZE + offset_of<P::C, P::H, P::W, P::XROW != 0>(channel, row, col);
    }
    __device__ static i64 y_offset(i64 image, i64 channel, i64 row, i64 col) {
        return image * Y_SIZE + offset_of<P::C, P::OH, P::OW, P::YROW != 0>(channel, row, col);
    }
};

// Whether `value` takes the place of `best`: greater, or a NaN (the last NaN wins).
__device__ __forceinline__ bool replaces(f32 value, f32 best) {
    return value > best || value != value;
}

// Cells that the window at (p, q) averages: padding counts if COUNT_PADDING, but never what
// overhangs it.
template <class P>
__device__ __forceinline__ f32 averaged_cells(i64 p, i64 q) {
    i64 top = p * P::UH - P::PH, left = q * P::UW - P::PW;
    i64 bottom = least(top + P::KH, P::H + P::PH), right = least(left + P::KW, P::W + P::PW);
    if (P::COUNT_PADDING == 0) {
        top = greatest(top, 0), left = greatest(left, 0);
        bottom = least(bottom, P::H), right = least(right, P::W);
    }
    return f32((bottom - top) * (right - left));
}
