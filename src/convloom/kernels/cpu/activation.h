// The functions of one element, by their number KIND, and their gradients (ops/activation.py).
//
// a and b are the function's parameters. Gradients are taken from v: the output y, or the input x,
// as ops/activation.py says. Masks are selected, never multiplied: what is not finite stops at a
// closed gate.
#pragma once

#include "functions.h"

namespace convloom {

// The order of KINDS in ops/activation.py, behind NONE and RELU.
enum ActivationKind : long {
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

CL_INLINE vec square_root(vec x) {
    CL_UNROLL for (int l = 0; l < LANES; ++l) x[l] = __builtin_sqrtf(x[l]);
    return x;
}

// The argument of GELU_TANH's logistic function, and its slope.
CL_INLINE vec gelu_inner(vec x) {
    return x * fma(x * x, broadcast(0.0713548162726f), broadcast(1.59576912161f));
}
CL_INLINE vec gelu_inner_slope(vec x) {
    return fma(x * x, broadcast(3 * 0.0713548162726f), broadcast(1.59576912161f));
}

template <long KIND>
CL_INLINE vec activate(vec x, f32 a, f32 b) {
    const vec av = broadcast(a), bv = broadcast(b);
    if constexpr (KIND == RELU) return relu(x);
    if constexpr (KIND == LEAKY_RELU) return select(x > zero(), x, av * x);
    if constexpr (KIND == CLAMP) return select(x < av, av, select(x > bv, bv, x));
    if constexpr (KIND == ELU)
        return select(x > zero(), x, av * expm1_nonpositive(select(x > zero(), zero(), x)));
    if constexpr (KIND == GELU) return x * normal_law(x).phi;
    if constexpr (KIND == GELU_TANH) return x * logistic(gelu_inner(x));
    if constexpr (KIND == SILU) return x * logistic(x);
    if constexpr (KIND == HARDSWISH) {
        const vec low = x + broadcast(3.0f), six = broadcast(6.0f);
        const vec gate = select(low < zero(), zero(), select(low > six, six, low));
        return x * gate * broadcast(1.0f / 6);
    }
    if constexpr (KIND == TANH) return av * tangent(bv * x);
    if constexpr (KIND == SIGMOID) return logistic(x);
    if constexpr (KIND == SOFTPLUS) {
        const vec z = av * x;
        return select(z > bv, x, soft_rectifier(z) * broadcast(1 / a));
    }
    if constexpr (KIND == SQUARE) return x * x;
    if constexpr (KIND == ABS) return magnitude(x);
    if constexpr (KIND == SQRT) return square_root(x);
    if constexpr (KIND == LINEAR) return fma(av, x, bv);
    if constexpr (KIND == DRELU) return x - av * tangent(x * broadcast(1 / a));
    return x;
}

// x behind a layer whose constants are P: its activation's number ACT and the bits of a and b.
template <class P>
CL_INLINE vec activated(vec x) {
    if constexpr (P::ACT > RELU) {
        const f32 a = __builtin_bit_cast(f32, i32(P::ACT_A));
        return activate<P::ACT>(x, a, __builtin_bit_cast(f32, i32(P::ACT_B)));
    } else {
        return activate<P::ACT>(x, 0.0f, 0.0f);
    }
}

template <long KIND>
CL_INLINE vec activation_gradient(vec dy, vec v, f32 a, f32 b) {
    const vec av = broadcast(a), bv = broadcast(b), one = broadcast(1.0f);
    if constexpr (KIND == RELU) return relu_mask(v, dy);
    if constexpr (KIND == LEAKY_RELU) return select(v > zero(), dy, dy * av);
    if constexpr (KIND == CLAMP) return select((v > av) & (v < bv), dy, zero());
    if constexpr (KIND == ELU) {
        if (a >= 0) return select(v > zero(), dy, dy * (v + av));
        return select(v > zero(), dy, dy * (av * exponential(v)));
    }
    if constexpr (KIND == GELU) {
        const Normal law = normal_law(v);
        return dy * fma(v * broadcast(0.398942280f), law.bell, law.phi);
    }
    if constexpr (KIND == GELU_TANH) {
        const vec gate = logistic(gelu_inner(v));
        return dy * fma(v * gate * (one - gate), gelu_inner_slope(v), gate);
    }
    if constexpr (KIND == SILU) {
        const vec gate = logistic(v);
        return dy * (gate * fma(v, one - gate, one));
    }
    if constexpr (KIND == HARDSWISH) {
        const vec three = broadcast(3.0f);
        const vec slope = select(v >= three, one, fma(v, broadcast(1.0f / 3), broadcast(0.5f)));
        return dy * select(v <= broadcast(-3.0f), zero(), slope);
    }
    if constexpr (KIND == TANH) return dy * (bv * (av - v * v * broadcast(1 / a)));
    if constexpr (KIND == SIGMOID) return dy * (v * (one - v));
    if constexpr (KIND == SOFTPLUS) return select(av * v > bv, dy, dy * logistic(av * v));
    if constexpr (KIND == SQUARE) return dy * (v + v);
    if constexpr (KIND == ABS)
        return select(v > zero(), dy, dy * select(v < zero(), broadcast(-1.0f), av));
    if constexpr (KIND == SQRT) return dy / (v + v);
    if constexpr (KIND == LINEAR) return dy * av;
    if constexpr (KIND == DRELU) {
        const vec t = tangent(v * broadcast(1 / a));
        return dy * (t * t);
    }
    return dy;
}

// The gradient that passes the activation of a layer whose constants are P, by its output y.
template <class P>
CL_INLINE vec passed(vec dy, vec y) {
    if constexpr (P::ACT > RELU) {
        const f32 a = __builtin_bit_cast(f32, i32(P::ACT_A));
        return activation_gradient<P::ACT>(dy, y, a, __builtin_bit_cast(f32, i32(P::ACT_B)));
    } else {
        return activation_gradient<P::ACT>(dy, y, 0.0f, 0.0f);
    }
}

// The gradient g behind a layer whose constants are P, of the activation MASK that made `kept`.
template <class P>
CL_INLINE vec masked(vec kept, vec g) {
    if constexpr (P::MASK > RELU) {
        const f32 a = __builtin_bit_cast(f32, i32(P::MASK_A));
        return activation_gradient<P::MASK>(g, kept, a, __builtin_bit_cast(f32, i32(P::MASK_B)));
    } else {
        return activation_gradient<P::MASK>(g, kept, 0.0f, 0.0f);
    }
}

}  // namespace convloom
