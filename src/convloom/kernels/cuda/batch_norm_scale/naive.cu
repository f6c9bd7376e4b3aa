// scale = weight / sqrt(variance + eps), by channel: batch normalisation with known statistics
//
// One thread a channel.
// Limit: none worth the name.
#include "device/index.cuh"

template <class P>
__global__ void batch_norm_scale_naive(const f32* variance, f32* scale, i64 channels, f32 eps,
                                       const f32* weight) {
    const i64 c = global_thread();
    if (c >= channels) return;
    const f32 inverse = f32(1.0 / sqrt(f64(variance[c]) + f64(eps)));
    scale[c] = P::AFFINE != 0 ? inverse * weight[c] : inverse;
}
