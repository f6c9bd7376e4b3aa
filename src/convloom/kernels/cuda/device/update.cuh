// The update rules, element by element. Rates come from the `hyper` vector at run time.
#pragma once

#include "device/types.cuh"

// Slots of the hyper vector, as in ops/control.py.
enum Hyper { LR, MOMENTUM, WEIGHT_DECAY, BETA1, BETA2, EPS, MAX_NORM, BIAS1, BIAS2 };

// min(1, max_norm / (norm + 1e-6)); a NaN norm gives NaN, as torch.nn.utils.clip_grad_norm_ does.
template <class Values>
__device__ __forceinline__ f32 clip_scale(Values* hyper, const f64* norm) {
    const f64 scale = hyper[MAX_NORM] / (*norm + 1e-6);
    return scale > 1.0 ? 1.0f : f32(scale);
}

// What all elements of a parameter share. P holds CLIP and NESTEROV; the vector may be volatile.
template <class P>
struct SgdRule {
    f32 rate, decay, momentum, scale;

    template <class Values>
    __device__ SgdRule(Values* hyper, const f64* norm, f32 rate_by, f32 decay_by)
        : rate(f32(hyper[LR] * rate_by)),
          decay(f32(hyper[WEIGHT_DECAY] * decay_by)),
          momentum(f32(hyper[MOMENTUM])),
          scale(P::CLIP != 0 ? clip_scale(hyper, norm) : 1.0f) {}

    // New parameter p and velocity v of gradient g.
    __device__ void update(f32& p, f32 g, f32& v) const {
        if (P::CLIP != 0) g *= scale;
        if (decay != 0.0f) g = fmaf(decay, p, g);
        v = fmaf(momentum, v, g);
        p = fmaf(-rate, P::NESTEROV != 0 ? fmaf(momentum, v, g) : v, p);
    }
};

template <class P>
struct AdamwRule {
    f32 kept, step, beta2, blend1, blend2, root_bias2, eps, scale;

    template <class Values>
    __device__ AdamwRule(Values* hyper, const f64* norm, f32 rate_by, f32 decay_by)
        : kept(f32(1.0 - hyper[LR] * rate_by * (hyper[WEIGHT_DECAY] * decay_by))),
          step(f32(hyper[LR] * rate_by / hyper[BIAS1])),
          beta2(f32(hyper[BETA2])),
          blend1(f32(1.0 - hyper[BETA1])),
          blend2(f32(1.0 - hyper[BETA2])),
          root_bias2(f32(sqrt(hyper[BIAS2]))),
          eps(f32(hyper[EPS])),
          scale(P::CLIP != 0 ? clip_scale(hyper, norm) : 1.0f) {}

    // New parameter p, first moment m and second moment v of gradient g.
    __device__ void update(f32& p, f32 g, f32& m, f32& v) const {
        if (P::CLIP != 0) g *= scale;
        m = fmaf(blend1, g - m, m);
        v = fmaf(beta2, v, blend2 * (g * g));
        p = fmaf(-step, m / (sqrtf(v) / root_bias2 + eps), p * kept);
    }
};
