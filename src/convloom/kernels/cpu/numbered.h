// Where elements lie that are numbered in NCHW order whatever the memory order.
#pragma once

#include "abi.h"

namespace convloom {

// Calls use(k, place) for `count` elements, k from 0, of which the first has number `first`.
template <bool NHWC, class Use>
inline void each_numbered(i64 first, i64 count, i64 channels, i64 pixels, const Use& use) {
    if constexpr (NHWC) {
        i64 pixel = first % pixels, channel = first / pixels % channels;
        i64 image = first / pixels / channels * channels * pixels;
        for (i64 k = 0; k < count; ++k) {
            use(k, image + pixel * channels + channel);
            if (++pixel < pixels) continue;
            pixel = 0;
            if (++channel < channels) continue;
            channel = 0;
            image += channels * pixels;
        }
    } else {
        for (i64 k = 0; k < count; ++k) use(k, first + k);
    }
}

}  // namespace convloom
