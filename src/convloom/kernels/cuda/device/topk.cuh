// The rank of a label among the logits of its sample.
#pragma once

#include "device/index.cuh"

// Whether class k ranks before the label: its logit is greater, or equal and earlier, or NaN.
__device__ __forceinline__ bool ranks_before(f32 value, i64 k, f32 own, i64 label) {
    return k < label ? !(value < own) : k > label && !(value <= own);
}

// How far a label is from right at the first k places, from 0 to 1: `ahead` classes score more, and
// `equal` ones, itself among them, share the places left.
__device__ __forceinline__ f64 wrong_at(i64 k, i64 ahead, i64 equal) {
    const i64 places = k - ahead;
    if (places <= 0) return 1.0;
    return places >= equal ? 0.0 : 1.0 - f64(places) / f64(equal);
}
