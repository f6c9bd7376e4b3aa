// exp, expm1, tanh, the logistic function, log(1 + exp(x)) and the normal law.
//
// The twin of cpu/functions.h: the same constants and the same order of operations, so that CPU and
// GPU give nearly the same bits; only divisions are coarser here. NaN gives NaN. Relative errors
// over all arguments: 4e-7, but for the far left tail of the normal law, where the argument's
// rounding counts: 4e-6 down to results of 1e-30.
#pragma once

#include "device/types.cuh"

// a / b within 2 units in the last place, in a quarter of a division's instructions; 0 for b above
// 2^126.
__device__ __forceinline__ f32 ratio(f32 a, f32 b) { return __fdividef(a, b); }

// 2^n for n in [-126, 127].
__device__ __forceinline__ f32 power_of_two(i32 n) {
    return __int_as_float(i32((u32(n) + 127u) << 23));
}

// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite). q = exp(r) - 1, from a Taylor polynomial
// whose remainder is below 3e-9. A NaN makes q NaN, and any n.
struct Exponent {
    i32 n;
    f32 q;
};

__device__ __forceinline__ Exponent exponent(f32 x) {
    // Adding 1.5 * 2^23 rounds to an integer, which then is the end of the sum's bits: conversions
    // run at an eighth of the rate of additions.
    const f32 rounder = 12582912.0f;
    const f32 rounded = fmaf(x, 1.44269504f, rounder), n = rounded - rounder;
    f32 r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    f32 p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    return {i32(u32(__float_as_int(rounded)) - u32(__float_as_int(rounder))), fmaf(p * r, r, r)};
}

// Any x; from 89 on infinity, below -104 zero.
__device__ __forceinline__ f32 exponential(f32 x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    const Exponent e = exponent(x);
    const i32 half = e.n >> 1;  // in two factors: 2^128 and 2^-150 have no exponent field
    return (e.q + 1.0f) * power_of_two(half) * power_of_two(i32(u32(e.n) - u32(half)));
}

// exp(x) - 1 for x <= 0.
__device__ __forceinline__ f32 expm1_nonpositive(f32 x) {
    const Exponent e = exponent(x < -20.0f ? -20.0f : x);
    const f32 scale = power_of_two(e.n);
    return fmaf(scale, e.q, scale - 1.0f);
}

__device__ __forceinline__ f32 tangent(f32 x) {
    const f32 t = expm1_nonpositive(-2.0f * fabsf(x));
    return copysignf(ratio(t, t + 2.0f), x);
}

__device__ __forceinline__ f32 logistic(f32 x) { return ratio(1.0f, 1.0f + exponential(-x)); }

// 2 atanh(s) for |s| <= 1/3.
__device__ __forceinline__ f32 twice_atanh(f32 s) {
    const f32 z = s * s;
    f32 p = 0.243009374f;
    p = fmaf(p, z, 0.214276567f);
    p = fmaf(p, z, 0.286168844f);
    p = fmaf(p, z, 0.39998877f);
    p = fmaf(p, z, 0.666666746f);
    return fmaf(s * z, p, s + s);
}

// log(1 + u) for u in [0, 1]: 2 atanh(u / (2 + u)).
__device__ __forceinline__ f32 log1p_unit(f32 u) {
    return twice_atanh(ratio(u, u + 2.0f));
}

// log(x): x = 2^e m with m from sqrt(1/2) to sqrt(2). 0 gives -infinity, what is below it NaN.
__device__ __forceinline__ f32 natural_log(f32 x) {
    const bool tiny = x < 1.17549435e-38f;  // below the least normal number
    const u32 bits = u32(__float_as_int(tiny ? x * 8388608.0f : x));
    const i32 e = i32(bits - 0x3f3504f3u) >> 23;
    const f32 m = __int_as_float(i32(bits - (u32(e) << 23)));
    const f32 log_m = twice_atanh(ratio(m - 1.0f, m + 1.0f));
    const f32 n = f32(e) - (tiny ? 23.0f : 0.0f);
    const f32 log_x = fmaf(n, 0.693359375f, fmaf(n, -2.12194440e-4f, log_m));
    const f32 infinity = __int_as_float(0x7f800000);
    if (x > 0.0f && x < infinity) return log_x;
    if (x == 0.0f) return -infinity;
    return x < 0.0f ? __int_as_float(0x7fffffff) : x;  // NaN stays, and so does infinity
}

// log(1 + exp(x)).
__device__ __forceinline__ f32 soft_rectifier(f32 x) {
    return (x > 0.0f ? x : 0.0f) + log1p_unit(exponential(-fabsf(x)));
}

// The normal law: Phi(x), and exp(-x^2 / 2). With u = 1 / (1 + |x| / 4), the tail Phi(-|x|) is
// exp(-x^2 / 2) times u times a polynomial in u.
struct Normal {
    f32 phi, bell;
};

__device__ __forceinline__ Normal normal_law(f32 x) {
    const f32 u = ratio(1.0f, fmaf(fabsf(x), 0.25f, 1.0f));
    const f32 bell = exponential(-0.5f * x * x);
    f32 p = 0.040165998f;
    p = fmaf(p, u, -0.16442129f);
    p = fmaf(p, u, 0.196137115f);
    p = fmaf(p, u, -0.0684122965f);
    p = fmaf(p, u, 0.130355909f);
    p = fmaf(p, u, 0.116895318f);
    p = fmaf(p, u, 0.163425982f);
    p = fmaf(p, u, 0.186907962f);
    p = fmaf(p, u, 0.199474141f);
    p = fmaf(p, u, 0.199471116f);
    const f32 tail = 0.5f * bell * (u * p);
    return {x < 0.0f ? tail : 1.0f - tail, bell};
}
