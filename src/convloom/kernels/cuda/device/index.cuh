// Where threads stand and where elements lie. Everything that grows with the batch is 64-bit.
#pragma once

#include "device/types.cuh"

// The number of this thread in a grid of one dimension.
__device__ __forceinline__ i64 global_thread() {
    return i64(blockIdx.x) * blockDim.x + threadIdx.x;
}

// The least integer that is at least a / b, for a >= 0 and b > 0.
__host__ __device__ constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// The least multiple of b that is at least a.
__host__ __device__ constexpr i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }

__host__ __device__ constexpr i64 least(i64 a, i64 b) { return a < b ? a : b; }

__host__ __device__ constexpr i64 greatest(i64 a, i64 b) { return a < b ? b : a; }

// An element of a stack of images; filters are images too, one each.
struct Place {
    i64 image;
    i32 channel, row, col;
};

// The place of element i of images (n, C, H, W) in memory: NHWC, or NCHW if ROW.
template <i64 C, i64 H, i64 W, bool ROW>
__device__ __forceinline__ Place place_of(i64 i) {
    if constexpr (ROW) {
        const i64 line = i / W, plane = line / H;
        return {plane / C, i32(plane % C), i32(line % H), i32(i % W)};
    } else {
        const i64 pixel = i / C, line = pixel / W;
        return {line / H, i32(i % C), i32(line % H), i32(pixel % W)};
    }
}

// What counts the elements of an image: 32 bits nearly always suffice, and cost a third of 64.
template <bool WIDE>
struct CountOf {
    using Type = i32;
};
template <>
struct CountOf<true> {
    using Type = i64;
};

// As offset_of, inside one image. The place may be nonsense, and the offset with it: it wraps.
template <i64 C, i64 H, i64 W, bool ROW>
__device__ __forceinline__ typename CountOf<(C * H * W >= 1LL << 31)>::Type offset_within(
    i32 channel, i32 row, i32 col) {
    if constexpr (C * H * W >= 1LL << 31)
        return ROW ? (channel * H + row) * W + col : (row * W + col) * C + channel;
    else if constexpr (ROW)
        return i32((u32(channel) * u32(H) + u32(row)) * u32(W) + u32(col));
    else
        return i32((u32(row) * u32(W) + u32(col)) * u32(C) + u32(channel));
}

// How far an element of an image (C, H, W) lies from the image's first: the inverse of place_of.
template <i64 C, i64 H, i64 W, bool ROW>
__device__ __forceinline__ i64 offset_of(i64 channel, i64 row, i64 col) {
    return ROW ? (channel * H + row) * W + col : (row * W + col) * C + channel;
}

template <i64 C, i64 H, i64 W, bool ROW>
__device__ __forceinline__ i64 offset_of(const Place& at) {
    return at.image * (C * H * W) + offset_of<C, H, W, ROW>(at.channel, at.row, at.col);
}

// A place in a stack of maps ROWS x COLS that moves on by STEP places at a time, image by image in
// row-major order, without dividing.
template <i64 ROWS, i64 COLS, i64 STEP>
struct Walk {
    i64 image;
    i32 row, col;

    __device__ static Walk from(i64 i) {
        const u32 rest = u32(i % (ROWS * COLS));
        return {i / (ROWS * COLS), i32(rest / u32(COLS)), i32(rest % u32(COLS))};
    }
    __device__ void move() {
        image += STEP / (ROWS * COLS);
        row += i32(STEP % (ROWS * COLS) / COLS);
        col += i32(STEP % COLS);
        if (col >= COLS) col -= i32(COLS), ++row;
        if (row >= ROWS) row -= i32(ROWS), ++image;
    }
};
