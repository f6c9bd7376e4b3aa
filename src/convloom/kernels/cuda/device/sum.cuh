// The terms of a weighted sum, in their order.
#pragma once

#include "device/types.cuh"

// The sum so far and its k-th term, c * x, or x unless SCALED; the first term begins the sum.
template <class P>
__device__ __forceinline__ f32 with_term(f32 sum, int k, f32 c, f32 x) {
    if (k == 0) return P::SCALED != 0 ? c * x : x;
    return P::SCALED != 0 ? fmaf(c, x, sum) : sum + x;
}
