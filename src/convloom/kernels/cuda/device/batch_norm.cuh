// What batch normalisation does with a channel's statistics.
#pragma once

#include "device/types.cuh"

// Where a channel's results go; a running value lies at the same place before and after.
struct BatchNorm {
    f32 *scale, *mean, *invstd;
    const f32 *weight, *old_mean, *old_variance;
    f32 *new_mean, *new_variance;
    f32 momentum;
    const i64* batches;

    // From the mean and the sum of squared differences of n values. n = 0 leaves running values.
    template <class P>
    __device__ __forceinline__ void finish(i64 c, f64 m, f64 squares, i64 n, f32 eps) const {
        const f32 inverse = f32(1.0 / sqrt(squares / f64(n) + f64(eps)));
        scale[c] = P::AFFINE != 0 ? inverse * weight[c] : inverse;
        mean[c] = f32(m);
        invstd[c] = inverse;
        if constexpr (P::TRACK != 0) {
            f64 share = momentum;
            if constexpr (P::CUMULATIVE != 0) share = 1.0 / f64(*batches);
            const f64 variance = squares / f64(n - 1);
            const f32 m0 = old_mean[c], v0 = old_variance[c];
            new_mean[c] = n ? f32((1.0 - share) * m0 + share * m) : m0;
            new_variance[c] = n ? f32((1.0 - share) * v0 + share * variance) : v0;
        }
    }
};
