// Windows of pixels of a map: P::LOW rows and columns before a pixel, P::HIGH behind it, clipped.
#pragma once

#include "simd.h"

namespace convloom {

struct PixelWindow {
    i64 top, bottom, left, right;  // [top, bottom) x [left, right)
};

template <long LOW, long HIGH>
CL_INLINE PixelWindow pixel_window(i64 h, i64 w, i64 H, i64 W) {
    return {max(h - LOW, 0), min(h + HIGH + 1, H), max(w - LOW, 0), min(w + HIGH + 1, W)};
}

// Sum of value(v) over a window of one image's maps, for the channels at c.
template <class Value>
CL_INLINE vec window_total(const f32* image, PixelWindow window, i64 W, i64 channels, i64 c,
                           Value value) {
    vec sum = zero();
    for (i64 h = window.top; h < window.bottom; ++h)
        for (i64 w = window.left; w < window.right; ++w)
            sum += value(load_tail(image + (h * W + w) * channels + c, channels - c));
    return sum;
}

}  // namespace convloom
