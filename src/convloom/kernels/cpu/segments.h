// Many tensors walked as one: items are chunks of CHUNK elements, and no chunk crosses a tensor.
#pragma once

#include "simd.h"

namespace convloom {

struct Chunk {
    long tensor;  // which tensor
    i64 first;    // its elements [first, last)
    i64 last;
};

// Item `item` of `count` tensors whose sizes are args[0], args[1], ….
template <long CHUNK>
CL_INLINE Chunk find_chunk(const Arg* sizes, long count, long item) {
    long tensor = 0;
    for (; tensor < count; ++tensor) {
        const long items = ceil_div(sizes[tensor].integer, CHUNK);
        if (item < items) break;
        item -= items;
    }
    const i64 first = item * CHUNK;
    return {tensor, first, min(first + CHUNK, sizes[tensor].integer)};
}

// Slots of the hyper vector, as in ops/control.py.
enum Hyper { LR, MOMENTUM, WEIGHT_DECAY, BETA1, BETA2, EPS, MAX_NORM, BIAS1, BIAS2 };

CL_INLINE vec root(vec x) {
    CL_UNROLL for (int l = 0; l < LANES; ++l) x[l] = __builtin_sqrtf(x[l]);
    return x;
}

// min(1, max_norm / (norm + 1e-6)); a NaN norm gives NaN, as torch.nn.utils.clip_grad_norm_ does.
CL_INLINE f64 clip_scale(f64 max_norm, f64 norm) {
    const f64 scale = max_norm / (norm + 1e-6);
    return scale > 1.0 ? 1.0 : scale;
}

}  // namespace convloom
