// exp, expm1, tanh, the logistic function, log(1 + exp(x)) and the normal law, for vectors.
//
// The twin of cuda/device/functions.cuh: the same constants and the same order of operations, so
// that where this machine has FMA both give nearly the same bits. NaN gives NaN. Relative errors
// over all arguments, as tests/backends/test_activation.py measures them: 2e-7, but for the far
// left tail of the normal law, where the argument's rounding counts: 4e-6 down to results of 1e-30.
// The polynomials of log1p and the normal law were fitted here, for the least greatest relative
// error.
#pragma once

#include "simd.h"

namespace convloom {

CL_INLINE vec magnitude(vec x) { return (vec)((ivec)x & 0x7fffffff); }
CL_INLINE vec with_sign_of(vec x, vec sign) {
    return (vec)((ivec)x | ((ivec)sign & broadcast_i32(i32(0x80000000u))));
}

// 2^n for n in [-126, 127].
CL_INLINE vec power_of_two(ivec n) { return (vec)((n + 127) << 23); }

// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite). q = exp(r) - 1, from a Taylor polynomial
// whose remainder is below 3e-9. A NaN makes q NaN, and any n.
struct Exponent {
    ivec n;
    vec q;
};

CL_INLINE Exponent exponent(vec x) {
    // Adding 1.5 * 2^23 rounds to an integer, which then is the end of the sum's bits.
    const vec rounder = broadcast(12582912.0f);
    const vec rounded = fma(x, broadcast(1.44269504f), rounder);
    const vec n = rounded - rounder;
    vec r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    vec p = broadcast(1.0f / 5040);
    p = fma(p, r, broadcast(1.0f / 720));
    p = fma(p, r, broadcast(1.0f / 120));
    p = fma(p, r, broadcast(1.0f / 24));
    p = fma(p, r, broadcast(1.0f / 6));
    p = fma(p, r, broadcast(0.5f));
    return {(ivec)rounded - (ivec)rounder, fma(p * r, r, r)};
}

// Any x; from 89 on infinity, below -104 zero.
CL_INLINE vec exponential(vec x) {
    x = select(x > broadcast(89.0f), broadcast(89.0f), x);
    x = select(x < broadcast(-104.0f), broadcast(-104.0f), x);
    const Exponent e = exponent(x);
    const ivec half = e.n >> 1;  // in two factors: 2^128 and 2^-150 have no exponent field
    return (e.q + broadcast(1.0f)) * power_of_two(half) * power_of_two(e.n - half);
}

// exp(x) - 1 for x <= 0.
CL_INLINE vec expm1_nonpositive(vec x) {
    const Exponent e = exponent(select(x < broadcast(-20.0f), broadcast(-20.0f), x));
    const vec scale = power_of_two(e.n);
    return fma(scale, e.q, scale - broadcast(1.0f));
}

CL_INLINE vec tangent(vec x) {
    const vec t = expm1_nonpositive(broadcast(-2.0f) * magnitude(x));
    return with_sign_of(t / (t + broadcast(2.0f)) * broadcast(-1.0f), x);
}

CL_INLINE vec logistic(vec x) {
    return broadcast(1.0f) / (broadcast(1.0f) + exponential(broadcast(-1.0f) * x));
}

// 2 atanh(s) for |s| <= 1/3.
CL_INLINE vec twice_atanh(vec s) {
    const vec z = s * s;
    vec p = broadcast(0.243009374f);
    p = fma(p, z, broadcast(0.214276567f));
    p = fma(p, z, broadcast(0.286168844f));
    p = fma(p, z, broadcast(0.39998877f));
    p = fma(p, z, broadcast(0.666666746f));
    return fma(s * z, p, s + s);
}

// log(1 + u) for u in [0, 1]: 2 atanh(u / (2 + u)).
CL_INLINE vec log1p_unit(vec u) {
    return twice_atanh(u / (u + broadcast(2.0f)));
}

// log(x): x = 2^e m with m from sqrt(1/2) to sqrt(2). 0 gives -infinity, what is below it NaN.
CL_INLINE vec natural_log(vec x) {
    const ivec tiny = x < broadcast(1.17549435e-38f);  // below the least normal number
    const ivec bits = (ivec)select(tiny, x * broadcast(8388608.0f), x);
    const ivec e = (bits - 0x3f3504f3) >> 23;
    const vec m = (vec)(bits - (e << 23));
    const vec log_m = twice_atanh((m - broadcast(1.0f)) / (m + broadcast(1.0f)));
    const vec n = __builtin_convertvector(e, vec) - select(tiny, broadcast(23.0f), zero());
    const vec log_x = fma(n, broadcast(0.693359375f), fma(n, broadcast(-2.12194440e-4f), log_m));
    const vec infinity = broadcast(__builtin_inff());
    const vec beyond = select(x < zero(), broadcast(__builtin_nanf("")), x);  // NaN, infinity
    const vec high = select((x < infinity) & (x > zero()), log_x, beyond);
    return select(x == zero(), zero() - infinity, high);
}

// log(1 + exp(x)).
CL_INLINE vec soft_rectifier(vec x) {
    const vec tail = log1p_unit(exponential(broadcast(-1.0f) * magnitude(x)));
    return select(x > zero(), x, zero()) + tail;
}

// The normal law: Phi(x), and exp(-x^2 / 2). With u = 1 / (1 + |x| / 4), the tail Phi(-|x|) is
// exp(-x^2 / 2) times u times a polynomial in u.
struct Normal {
    vec phi, bell;
};

CL_INLINE Normal normal_law(vec x) {
    const vec one = broadcast(1.0f);
    const vec u = one / fma(magnitude(x), broadcast(0.25f), one);
    const vec bell = exponential(broadcast(-0.5f) * x * x);
    vec p = broadcast(0.040165998f);
    p = fma(p, u, broadcast(-0.16442129f));
    p = fma(p, u, broadcast(0.196137115f));
    p = fma(p, u, broadcast(-0.0684122965f));
    p = fma(p, u, broadcast(0.130355909f));
    p = fma(p, u, broadcast(0.116895318f));
    p = fma(p, u, broadcast(0.163425982f));
    p = fma(p, u, broadcast(0.186907962f));
    p = fma(p, u, broadcast(0.199474141f));
    p = fma(p, u, broadcast(0.199471116f));
    const vec tail = broadcast(0.5f) * bell * (u * p);
    return {select(x < zero(), tail, one - tail), bell};
}

}  // namespace convloom
