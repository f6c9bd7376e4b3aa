// What softmax needs of a row of K neighbouring logits: the greatest, and the exponentials.
//
// Exponentials are float32, their sum float64. Where K is a constant the loops are too.
#pragma once

#include "exp.h"
#include "f64.h"

namespace convloom {

// The greatest logit, or NaN.
CL_INLINE f32 greatest(const f32* logits, long K) {
    vec best = broadcast(-__builtin_inff());
    long k = 0;
    for (; k + LANES <= K; k += LANES) best = vmax(best, load(logits + k));
    f32 result = -__builtin_inff();
    const auto take = [&](f32 value) {
        if (value > result || value != value) result = value;
    };
    if (K >= LANES)
        for (int l = 0; l < LANES; ++l) take(best[l]);
    for (; k < K; ++k) take(logits[k]);
    return result;
}

// e[k] = exp(logits[k] - top); returns their sum.
CL_INLINE f64 exponentials(const f32* logits, f32 top, f32* e, long K) {
    dvec low = {}, high = {};
    long k = 0;
    for (; k + LANES <= K; k += LANES) {
        f32 lanes[LANES];
        const vec value = exp_nonpositive(load(logits + k) - broadcast(top));
        store(e + k, value);
        store(lanes, value);
        low += widen(lanes);
        high += widen(lanes + HALF);
    }
    f64 sum = horizontal_sum(low + high);
    if (K % LANES != 0) {
        store_tail(e + k, exp_nonpositive(load_tail(logits + k, K - k) - broadcast(top)), K - k);
        for (; k < K; ++k) sum += e[k];
    }
    return sum;
}

}  // namespace convloom
