// The functions of one element, by their number KIND, and their gradients (ops/activation.py).
//
// a and b are the function's parameters. Gradients are taken from v: the output y, or the input x,
// as ops/activation.py says. Masks are selected, never multiplied: what is not finite stops at a
// closed gate. NaN passes through all of them forward.
#pragma once

#include "device/functions.cuh"

// The order of KINDS in ops/activation.py, behind NONE and RELU.
enum ActivationKind : i64 {
    NONE,
    RELU,
    LEAKY_RELU,
    CLAMP,
    ELU,
    GELU,
    GELU_TANH,
    SILU,
    HARDSWISH,
    TANH,
    SIGMOID,
    SOFTPLUS,
    SQUARE,
    ABS,
    SQRT,
    LINEAR,
    DRELU,
};

__device__ __forceinline__ f32 rectified(f32 x) { return x <= 0.0f ? 0.0f : x; }

// The gradient that passes a rectifier whose output was y.
__device__ __forceinline__ f32 masked(f32 dy, f32 y) { return y <= 0.0f ? 0.0f : dy; }

// The argument of GELU_TANH's logistic function, and its slope.
__device__ __forceinline__ f32 gelu_inner(f32 x) {
    return x * fmaf(x * x, 0.0713548162726f, 1.59576912161f);
}
__device__ __forceinline__ f32 gelu_inner_slope(f32 x) {
    return fmaf(x * x, 3 * 0.0713548162726f, 1.59576912161f);
}

template <i64 KIND>
__device__ __forceinline__ f32 activate(f32 x, f32 a, f32 b) {
    if constexpr (KIND == RELU) return rectified(x);
    if constexpr (KIND == LEAKY_RELU) return x > 0.0f ? x : a * x;
    if constexpr (KIND == CLAMP) return x < a ? a : x > b ? b : x;
    if constexpr (KIND == ELU) return x > 0.0f ? x : a * expm1_nonpositive(x);
    if constexpr (KIND == GELU) return x * normal_law(x).phi;
    if constexpr (KIND == GELU_TANH) return x * logistic(gelu_inner(x));
    if constexpr (KIND == SILU) return x * logistic(x);
    if constexpr (KIND == HARDSWISH) {
        const f32 low = x + 3.0f;
        return x * (low < 0.0f ? 0.0f : low > 6.0f ? 6.0f : low) * (1.0f / 6);
    }
    if constexpr (KIND == TANH) return a * tangent(b * x);
    if constexpr (KIND == SIGMOID) return logistic(x);
    if constexpr (KIND == SOFTPLUS) return a * x > b ? x : soft_rectifier(a * x) * (1 / a);
    if constexpr (KIND == SQUARE) return x * x;
    if constexpr (KIND == ABS) return fabsf(x);
    if constexpr (KIND == SQRT) return sqrtf(x);
    if constexpr (KIND == LINEAR) return fmaf(a, x, b);
    if constexpr (KIND == DRELU) return x - a * tangent(x * (1 / a));
    return x;
}

// x behind a layer whose constants are P: its activation's number ACT and the bits of a and b.
template <class P>
__device__ __forceinline__ f32 activated(f32 x) {
    if constexpr (P::ACT > RELU)
        return activate<P::ACT>(x, __int_as_float(i32(P::ACT_A)), __int_as_float(i32(P::ACT_B)));
    else
        return activate<P::ACT>(x, 0.0f, 0.0f);
}

template <i64 KIND>
__device__ __forceinline__ f32 activation_gradient(f32 dy, f32 v, f32 a, f32 b) {
    if constexpr (KIND == RELU) return masked(dy, v);
    if constexpr (KIND == LEAKY_RELU) return v > 0.0f ? dy : dy * a;
    if constexpr (KIND == CLAMP) return v > a && v < b ? dy : 0.0f;
    if constexpr (KIND == ELU) {
        if (v > 0.0f) return dy;
        return dy * (a >= 0.0f ? v + a : a * exponential(v));
    }
    if constexpr (KIND == GELU) {
        const Normal law = normal_law(v);
        return dy * fmaf(v * 0.398942280f, law.bell, law.phi);
    }
    if constexpr (KIND == GELU_TANH) {
        const f32 gate = logistic(gelu_inner(v));
        return dy * fmaf(v * gate * (1.0f - gate), gelu_inner_slope(v), gate);
    }
    if constexpr (KIND == SILU) {
        const f32 gate = logistic(v);
        return dy * (gate * fmaf(v, 1.0f - gate, 1.0f));
    }
    if constexpr (KIND == HARDSWISH) {
        const f32 slope = v >= 3.0f ? 1.0f : fmaf(v, 1.0f / 3, 0.5f);
        return dy * (v <= -3.0f ? 0.0f : slope);
    }
    if constexpr (KIND == TANH) return dy * (b * (a - v * v * (1 / a)));
    if constexpr (KIND == SIGMOID) return dy * (v * (1.0f - v));
    if constexpr (KIND == SOFTPLUS) return a * v > b ? dy : dy * logistic(a * v);
    if constexpr (KIND == SQUARE) return dy * (v + v);
    if constexpr (KIND == ABS) return v > 0.0f ? dy : dy * (v < 0.0f ? -1.0f : a);
    if constexpr (KIND == SQRT) return dy / (v + v);
    if constexpr (KIND == LINEAR) return dy * a;
    if constexpr (KIND == DRELU) {
        const f32 t = tangent(v * (1 / a));
        return dy * (t * t);
    }
    return dy;
}

// The gradient that passes the activation of a layer whose constants are P, by its output y.
template <class P>
__device__ __forceinline__ f32 passed(f32 dy, f32 y) {
    if constexpr (P::ACT > RELU)
        return activation_gradient<P::ACT>(dy, y, __int_as_float(i32(P::ACT_A)),
                                           __int_as_float(i32(P::ACT_B)));
    else
        return activation_gradient<P::ACT>(dy, y, 0.0f, 0.0f);
}

// The gradient behind a layer whose constants are P, of the activation MASK that made y.
template <class P>
__device__ __forceinline__ f32 gated(f32 dy, f32 y) {
    if constexpr (P::MASK > RELU)
        return activation_gradient<P::MASK>(dy, y, __int_as_float(i32(P::MASK_A)),
                                            __int_as_float(i32(P::MASK_B)));
    else
        return activation_gradient<P::MASK>(dy, y, 0.0f, 0.0f);
}
