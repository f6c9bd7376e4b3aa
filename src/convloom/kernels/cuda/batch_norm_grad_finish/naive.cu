// Gradients of weight and bias from the chunks' sums, and what norm_grad_apply multiplies by
//
// factors (3, channel): a, b and c of dx = a g - b - c (x - mean). One thread a channel, in float64,
// in order.
// Limit: few threads, each of which waits for its loads.
#include "device/index.cuh"

template <class P>
__global__ void batch_norm_grad_finish_naive(const f32* partials, i64 channels, i64 rows,
                                             i64 chunks, const f32* invstd, f32* factors,
                                             const f32* weight, f32* dweight, f32* dbias) {
    const i64 c = global_thread();
    if (c >= channels) return;
    f64 plain = 0.0, moment = 0.0;
    for (i64 i = 0; i < chunks; ++i) {
        plain += partials[2 * i * channels + c];
        moment += partials[(2 * i + 1) * channels + c];
    }
    const f64 inverse = invstd[c], scale = P::AFFINE != 0 ? inverse * weight[c] : inverse;
    if constexpr (P::AFFINE != 0) {
        dweight[c] = f32(moment * inverse);
        dbias[c] = f32(plain);
    }
    factors[c] = f32(scale);
    factors[channels + c] = f32(scale * plain / f64(rows));
    factors[2 * channels + c] = f32(scale * inverse * inverse * moment / f64(rows));
}
