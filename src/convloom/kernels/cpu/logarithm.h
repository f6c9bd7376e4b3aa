// Natural logarithm, and real powers of positive numbers, for vectors.
//
// d = 2^e m with m in [sqrt(1/2), sqrt(2)); log(m) from a polynomial in m - 1 (Moshier's Cephes,
// logf: a relative error of 1e-7). NaN and negative numbers give NaN, 0 and what is below the least
// normal number gives -inf. A power's relative error is that of its argument times the exponent's
// size: 1e-6 for results from 1e-4 to 1e4.
#pragma once

#include "functions.h"

namespace convloom {

CL_INLINE vec logarithm(vec d) {
    const ivec bits = (ivec)d, e = (bits - 0x3f3504f3) >> 23;
    const vec x = (vec)(bits - (e << 23)) - broadcast(1.0f);
    const vec n = __builtin_convertvector(e, vec), z = x * x;
    vec p = broadcast(7.0376836292e-2f);
    p = fma(p, x, broadcast(-1.1514610310e-1f));
    p = fma(p, x, broadcast(1.1676998740e-1f));
    p = fma(p, x, broadcast(-1.2420140846e-1f));
    p = fma(p, x, broadcast(1.4249322787e-1f));
    p = fma(p, x, broadcast(-1.6668057665e-1f));
    p = fma(p, x, broadcast(2.0000714765e-1f));
    p = fma(p, x, broadcast(-2.4999993993e-1f));
    p = fma(p, x, broadcast(3.3333331174e-1f));
    vec y = fma(p * x, z, n * broadcast(-2.12194440e-4f));
    y = fma(z, broadcast(-0.5f), y) + x;
    y = fma(n, broadcast(0.693359375f), y);
    const vec infinity = broadcast(__builtin_inff());
    y = select(d == infinity, infinity, y);
    y = select(d < broadcast(1.17549435e-38f), zero() - infinity, y);
    return select(d >= zero(), y, broadcast(__builtin_nanf("")));
}

// d^exponent for d >= 0.
CL_INLINE vec power(vec d, vec exponent) { return exponential(exponent * logarithm(d)); }

}  // namespace convloom
