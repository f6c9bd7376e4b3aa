// What passes the activation behind a normalisation, for the channels of one thread.
//
// Its output tells, which is read (y); or, with AGAIN, is computed again as norm_apply does, from
// x - mean and 1/std and, with AFFINE, weight and bias: less to read than y.
#pragma once

#include "device/activation.cuh"
#include "device/rows.cuh"

template <class P>
struct NormGate {
    static constexpr int VEC = P::VEC;
    const f32* y;
    Channels<VEC> scale, shift;

    __device__ __forceinline__ NormGate(const f32* output, const f32* invstd, const f32* weight,
                                        const f32* bias, i64 channel)
        : y(output), scale{}, shift{} {
        if constexpr (P::ACT != NONE && P::AGAIN != 0) {
            scale = load_channels<VEC>(invstd + channel);
            if constexpr (P::AFFINE != 0) {
                const Channels<VEC> w = load_channels<VEC>(weight + channel);
                shift = load_channels<VEC>(bias + channel);
#pragma unroll
                for (int k = 0; k < VEC; ++k) scale.at[k] *= w.at[k];
            }
        }
    }

    // dy at element `at`, where x - mean is `centred`.
    __device__ __forceinline__ Channels<VEC> pass(Channels<VEC> dy, const Channels<VEC>& centred,
                                                  i64 at) const {
        if constexpr (P::ACT != NONE) {
            Channels<VEC> v = {};
            if constexpr (P::AGAIN == 0) v = load_channels<VEC>(y + at);
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                if constexpr (P::AGAIN != 0)
                    v.at[k] = activated<P>(fmaf(centred.at[k], scale.at[k], shift.at[k]));
                dy.at[k] = passed<P>(dy.at[k], v.at[k]);
            }
        }
        return dy;
    }
};
