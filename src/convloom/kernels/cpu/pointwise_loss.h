// The losses of one element, by their number KIND, and their slopes (ops/pointwise_loss.py).
#pragma once

#include "functions.h"

namespace convloom {

// The order of LOSSES in ops/pointwise_loss.py.
enum LossKind : long { BCE_LOGITS, BCE, MSE, LOG_SQUARE, SQUARE_LOSS, NLL };

// The greater of a logarithm and -a; NaN stays.
CL_INLINE vec log_at_least(vec x, f32 a) {
    const vec log = natural_log(x), least = broadcast(-a);
    return select(log < least, least, log);
}

template <long KIND>
CL_INLINE vec loss_value(vec x, vec t, f32 a) {
    const vec one = broadcast(1.0f);
    if constexpr (KIND == BCE_LOGITS) {
        const vec tail = log1p_unit(exponential(zero() - magnitude(x)));
        const vec no = select(x > zero(), x, zero()) + tail;
        const vec yes = select(x < zero(), zero() - x, zero()) + tail;
        return broadcast(a) * t * yes + (one - t) * no;
    }
    if constexpr (KIND == BCE)
        return zero() - (t * log_at_least(x, a) + (one - t) * log_at_least(one - x, a));
    if constexpr (KIND == MSE) return (x - t) * (x - t);
    if constexpr (KIND == LOG_SQUARE) {
        const vec square = (x - t) * (x - t);
        const vec small = log1p_unit(select(square < one, square, one));
        return select(square < one, small, natural_log(one + square));
    }
    if constexpr (KIND == SQUARE_LOSS) return x * x;
    if constexpr (KIND == NLL) return select(t == zero(), zero(), zero() - t * x);
}

template <long KIND>
CL_INLINE vec loss_slope(vec x, vec t, f32 a) {
    const vec one = broadcast(1.0f);
    if constexpr (KIND == BCE_LOGITS) {
        const vec s = logistic(x);
        return (one - t) * s - broadcast(a) * t * (one - s);
    }
    if constexpr (KIND == BCE) {
        const vec spread = x * (one - x), least = broadcast(1e-12f);
        return (x - t) / select(spread < least, least, spread);
    }
    if constexpr (KIND == MSE) return broadcast(2.0f) * (x - t);
    if constexpr (KIND == LOG_SQUARE) {
        const vec d = x - t;
        return (d + d) / fma(d, d, one);
    }
    if constexpr (KIND == SQUARE_LOSS) return x + x;
    if constexpr (KIND == NLL) return zero() - t;
}

}  // namespace convloom
