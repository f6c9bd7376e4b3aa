// The target distribution of cross-entropy, as the loss and its gradient read it.
//
// P holds K classes, and PROBABILITY: 1 if the target is a distribution (n, K), 0 for labels (n,).
#pragma once

#include "device/index.cuh"

// Cross-entropy of one sample: minus the sum over k of t[k] * log_probability(k), in float64. A
// label outside [0, K) makes it NaN; the host refuses such labels before a run.
template <class P, class LogProbability>
__device__ f64 sample_loss(const void* target, i64 sample, f32 smoothing,
                           const LogProbability& log_probability) {
    const f64 kept = 1.0 - f64(smoothing), spread = f64(smoothing) / P::K;
    f64 loss = 0.0;
    if constexpr (P::PROBABILITY != 0) {
        const f32* t = static_cast<const f32*>(target) + sample * P::K;
        for (i64 k = 0; k < P::K; ++k) {
            const f64 weight = smoothing != 0.0f ? f64(t[k]) * kept + spread : f64(t[k]);
            loss -= weight * log_probability(k);
        }
        return loss;
    } else {
        const i64 label = static_cast<const i64*>(target)[sample];
        if (label < 0 || label >= P::K) return nan("");
        if (smoothing == 0.0f) return -log_probability(label);
        for (i64 k = 0; k < P::K; ++k)
            loss -= ((k == label ? kept : 0.0) + spread) * log_probability(k);
        return loss;
    }
}

// Whether a label is none of the classes.
template <class P>
__device__ __forceinline__ bool lost_label(const void* target, i64 sample) {
    if (P::PROBABILITY != 0) return false;
    const i64 label = static_cast<const i64*>(target)[sample];
    return label < 0 || label >= P::K;
}

// t[k] of one sample, in float64.
template <class P>
__device__ __forceinline__ f64 exact_weight(const void* target, i64 sample, i64 k,
                                            f32 smoothing) {
    f64 t;
    if constexpr (P::PROBABILITY != 0)
        t = f64(static_cast<const f32*>(target)[sample * P::K + k]);
    else
        t = static_cast<const i64*>(target)[sample] == k ? 1.0 : 0.0;
    return smoothing != 0.0f ? t * (1.0 - f64(smoothing)) + f64(smoothing) / P::K : t;
}

// t[k] of one sample, in float32.
template <class P>
__device__ __forceinline__ f32 target_weight(const void* target, i64 sample, i64 k,
                                             f32 smoothing) {
    f32 t;
    if constexpr (P::PROBABILITY != 0)
        t = static_cast<const f32*>(target)[sample * P::K + k];
    else
        t = static_cast<const i64*>(target)[sample] == k ? 1.0f : 0.0f;
    return smoothing != 0.0f ? t * (1.0f - smoothing) + smoothing / P::K : t;
}

// The greater, or NaN if one of them is.
__device__ __forceinline__ f32 greater_or_nan(f32 a, f32 b) {
    return b > a || b != b ? b : a;
}
