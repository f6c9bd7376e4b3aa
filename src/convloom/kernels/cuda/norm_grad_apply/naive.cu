// dx = a dy - b - c (x - mean), by channel
//
// factors (3, channel): a, b, c. mean advances by `step` from image to image, factors by three times
// as much. One thread an element.
// Limit: 12 bytes of memory traffic an element, and the division that finds its channel.
#include "device/index.cuh"

template <class P>
__global__ void norm_grad_apply_naive(const f32* dy, const f32* x, const f32* means,
                                      const f32* factors, f32* dx, i64 channels, i64 rows,
                                      i64 step, i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    const i64 c = i % channels, image = i / channels / rows;
    const f32* f = factors + 3 * image * step + c;
    const f32 centred = x[i] - means[image * step + c];
    dx[i] = fmaf(f[0], dy[i], -fmaf(f[2 * channels], centred, f[channels]));
}
