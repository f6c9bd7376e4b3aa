// y = (x - mean) * scale [+ bias], by channel
//
// mean and scale advance by `step` from image to image: 0 or channels. One thread an element.
// Limit: 8 bytes of memory traffic an element, and the division that finds its channel.
#include "device/index.cuh"

template <class P>
__global__ void norm_apply_naive(const f32* x, const f32* mean, const f32* scale, f32* y,
                                 i64 channels, i64 rows, i64 step, i64 size, const f32* bias) {
    const i64 i = global_thread();
    if (i >= size) return;
    const i64 c = i % channels, at = i / channels / rows * step + c;
    y[i] = fmaf(x[i] - mean[at], scale[at], P::AFFINE != 0 ? bias[c] : 0.0f);
}
