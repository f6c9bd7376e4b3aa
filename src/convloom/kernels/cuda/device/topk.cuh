// The rank of a label among the logits of its sample.
#pragma once

#include "device/index.cuh"

// Whether class k ranks before the label: its logit is greater, or equal and earlier, or NaN.
__device__ __forceinline__ bool ranks_before(f32 value, i64 k, f32 own, i64 label) {
    return k < label ? !(value < own) : k > label && !(value <= own);
}
