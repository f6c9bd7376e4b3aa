// exp of a vector, for arguments that are not positive.
//
// Cody-Waite reduction x = n ln 2 + r, a degree-7 Taylor polynomial on |r| <= ln 2 / 2 (its
// remainder is below 3e-9), and 2^n through the exponent field. Error: 1.5 units in the last place.
// NaN gives NaN, -inf and everything whose result is below the least normal number gives 0.
#pragma once

#include "simd.h"

namespace convloom {

CL_INLINE vec exp_nonpositive(vec x) {
    const vec lowest = broadcast(-87.33654f);
    const ivec underflow = x < lowest;
    x = select(underflow, lowest, x);
    const vec rounder = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const vec n = fma(x, broadcast(1.44269504f), rounder) - rounder;
    vec r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    vec p = broadcast(1.0f / 5040);
    p = fma(p, r, broadcast(1.0f / 720));
    p = fma(p, r, broadcast(1.0f / 120));
    p = fma(p, r, broadcast(1.0f / 24));
    p = fma(p, r, broadcast(1.0f / 6));
    p = fma(p, r, broadcast(0.5f));
    p = fma(p, r, broadcast(1.0f));
    p = fma(p, r, broadcast(1.0f));
    // A NaN has no exponent field to compute; the product is NaN whatever is taken.
    const vec whole = select(n == n, n, zero());
    const ivec field = (__builtin_convertvector(whole, ivec) + 127) << 23;
    return select(underflow, zero(), p * (vec)field);
}

}  // namespace convloom
