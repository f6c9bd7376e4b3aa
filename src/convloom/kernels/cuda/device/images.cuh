// Images x (n, C, H, W) and y (n, C, OH, OW), each NCHW (XROW, YROW: 1) or NHWC (0).
#pragma once

#include "device/index.cuh"

template <class P>
struct Images {
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

// The place of this thread's four channels in images of H x W pixels, C channels last, where blocks
// of THREADS threads take `blocks` turns an image; false if it has none.
template <i64 C, i64 H, i64 W, int THREADS>
__device__ __forceinline__ bool place_of_fours(Place& at) {
    constexpr u32 ACROSS = u32(C / 4), COUNT = u32(H * W) * ACROSS;
    constexpr u32 BLOCKS = (COUNT + THREADS - 1) / THREADS;
    const u32 i = blockIdx.x % BLOCKS * THREADS + threadIdx.x, pixel = i / ACROSS;
    at = {blockIdx.x / BLOCKS, i32(i % ACROSS * 4), i32(pixel / u32(W)), i32(pixel % u32(W))};
    return i < COUNT;
}
