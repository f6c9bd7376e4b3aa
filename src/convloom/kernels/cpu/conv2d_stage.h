// Staging: copies a window of an image into a worker's scratch, zero where it overhangs.
//
// A staged window is [rows][cols][pixel] floats: channels are contiguous whatever the layout of the
// source, the padding is there as zeros, and so the loops that read it need no bounds checks.
// Cost: one read and one write of the window, a few per cent of the convolution it serves.
#pragma once

#include "simd.h"

namespace convloom {

// The window's place: image pixel (row0, col0) lands at its start; both may be negative.
struct Window {
    i64 row0, rows, col0, cols;
};

// An image of `channels` channels, of which [first, first + count) are staged.
struct Image {
    const f32* data;  // of this image
    i64 height, width, channels;
    i64 first, count;
};

// Copies the part of `window` inside the image; the rest becomes zero. `pixel` is the distance of
// staged pixels (at least image.count; the gap is left as it is). PLANAR: the source is NCHW.
template <bool PLANAR>
static void stage(f32* to, i64 pixel, const Image& image, const Window& window) {
    const i64 left = min(max(0, -window.col0), window.cols);
    const i64 inside = max(0, min(window.cols, image.width - window.col0) - left);
    const bool dense = pixel == image.count;
    for (i64 i = 0; i < window.rows; i++, to += window.cols * pixel) {
        const i64 row = window.row0 + i;
        if (row < 0 || row >= image.height || inside == 0) {
            fill_zero(to, window.cols * pixel);
            continue;
        }
        fill_zero(to, left * pixel);
        fill_zero(to + (left + inside) * pixel, (window.cols - left - inside) * pixel);
        f32* out = to + left * pixel;
        const i64 at = row * image.width + window.col0 + left;
        if constexpr (PLANAR) {
            for (i64 c = 0; c < image.count; c++) {
                const f32* in = image.data + (image.first + c) * image.height * image.width + at;
                for (i64 j = 0; j < inside; j++) out[j * pixel + c] = in[j];
            }
        } else {
            const f32* in = image.data + at * image.channels + image.first;
            if (dense && image.count == image.channels)
                copy(out, in, inside * pixel);
            else
                for (i64 j = 0; j < inside; j++)
                    for (i64 c = 0; c < image.count; c += LANES)
                        store_tail(out + j * pixel + c, load_tail(in + j * image.channels + c,
                                                                  image.count - c),
                                   image.count - c);
        }
    }
}

// The same for the gradient of a 2x2, stride-2 max-pool: `image` is the gradient at the pooled map
// (height and width are the pooled ones), `index` says which of the four pixels took each maximum.
// The window addresses the map before the pool.
template <bool PLANAR>
static void stage_unpooled(f32* to, i64 pixel, const Image& image, const u8* index,
                           const Window& window) {
    for (i64 i = 0; i < window.rows; i++, to += window.cols * pixel) {
        fill_zero(to, window.cols * pixel);
        const i64 row = window.row0 + i;
        if (row < 0 || row >= 2 * image.height) continue;
        const i32 wanted = i32(row & 1) * 2;
        const i64 first = max(0, window.col0) / 2;
        const i64 last = min(image.width, (window.col0 + window.cols + 1) / 2);
        for (i64 j = first; j < last; j++) {
            const i64 col = 2 * j - window.col0;
            const bool both[2] = {col >= 0, col + 1 < window.cols};
            f32* out = to + col * pixel;
            if constexpr (PLANAR) {
                for (i64 c = 0; c < image.count; c++) {
                    const i64 at = ((image.first + c) * image.height + row / 2) * image.width + j;
                    for (int side = 0; side < 2; side++)
                        if (both[side] && index[at] == wanted + side)
                            out[side * pixel + c] = image.data[at];
                }
            } else {
                const i64 at = ((row / 2) * image.width + j) * image.channels + image.first;
                i64 c = 0;
                for (; c + LANES <= image.count; c += LANES) {
                    const vec g = load(image.data + at + c);
                    const ivec taken = load_bytes(index + at + c);
                    CL_UNROLL for (int side = 0; side < 2; side++)
                        if (both[side])
                            store(out + side * pixel + c,
                                  select(taken == broadcast_i32(wanted + side), g, zero()));
                }
                for (; c < image.count; c++)
                    for (int side = 0; side < 2; side++)
                        if (both[side] && index[at + c] == wanted + side)
                            out[side * pixel + c] = image.data[at + c];
            }
        }
    }
}

}  // namespace convloom
