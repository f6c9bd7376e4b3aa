// The losses of one element, by their number KIND, and their slopes (ops/pointwise_loss.py).
#pragma once

#include "device/functions.cuh"

// The order of LOSSES in ops/pointwise_loss.py.
enum LossKind : i64 { BCE_LOGITS, BCE, MSE, LOG_SQUARE, SQUARE_LOSS, NLL };

// The greater of a logarithm and -a; NaN stays.
__device__ __forceinline__ f32 log_at_least(f32 x, f32 a) {
    const f32 log = natural_log(x);
    return log < -a ? -a : log;
}

template <i64 KIND>
__device__ __forceinline__ f32 loss_value(f32 x, f32 t, f32 a) {
    if constexpr (KIND == BCE_LOGITS) {
        const f32 tail = log1p_unit(exponential(-fabsf(x)));
        const f32 no = (x > 0.0f ? x : 0.0f) + tail, yes = (x < 0.0f ? -x : 0.0f) + tail;
        return a * t * yes + (1.0f - t) * no;
    }
    if constexpr (KIND == BCE)
        return -(t * log_at_least(x, a) + (1.0f - t) * log_at_least(1.0f - x, a));
    if constexpr (KIND == MSE) return (x - t) * (x - t);
    if constexpr (KIND == LOG_SQUARE) {
        const f32 square = (x - t) * (x - t);
        return square < 1.0f ? log1p_unit(square) : natural_log(1.0f + square);
    }
    if constexpr (KIND == SQUARE_LOSS) return x * x;
    if constexpr (KIND == NLL) return t == 0.0f ? 0.0f : -t * x;
}

template <i64 KIND>
__device__ __forceinline__ f32 loss_slope(f32 x, f32 t, f32 a) {
    if constexpr (KIND == BCE_LOGITS) {
        const f32 s = logistic(x);
        return (1.0f - t) * s - a * t * (1.0f - s);
    }
    if constexpr (KIND == BCE) {
        const f32 spread = x * (1.0f - x);
        return (x - t) / (spread < 1e-12f ? 1e-12f : spread);
    }
    if constexpr (KIND == MSE) return 2.0f * (x - t);
    if constexpr (KIND == LOG_SQUARE) {
        const f32 d = x - t;
        return (d + d) / fmaf(d, d, 1.0f);
    }
    if constexpr (KIND == SQUARE_LOSS) return x + x;
    if constexpr (KIND == NLL) return -t;
}
