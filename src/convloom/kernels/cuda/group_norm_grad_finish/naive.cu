// What norm_grad_apply multiplies by, and each image's part of the gradients of weight and bias
//
// factors (image, 3, channel); parts (image, {dweight, dbias}, channel) if AFFINE. With w = weight
// and h = (x - mean) / std: dx = (w dy - mean(w dy) - h mean(w dy h)) / std. One thread a group, in
// float64, in order.
// Limit: few threads, each of which waits for its loads.
#include "device/index.cuh"

template <class P>
__global__ void group_norm_grad_finish_naive(const f32* partials, i64 channels, i64 rows,
                                             i64 chunks, i64 groups, i64 images,
                                             const f32* invstd, f32* factors, const f32* weight,
                                             f32* parts) {
    const i64 i = global_thread(), image = i / groups, width = channels / groups;
    if (image >= images) return;
    const i64 first = i % groups * width;
    const f32* from = partials + image * chunks * 2 * channels;
    const f64 inverse = invstd[i], number = f64(rows * width);
    f64 plain = 0.0, moment = 0.0;
    for (i64 c = first; c < first + width; ++c) {
        f64 g = 0.0, gx = 0.0;
        for (i64 k = 0; k < chunks; ++k) {
            g += from[2 * k * channels + c];
            gx += from[(2 * k + 1) * channels + c];
        }
        if constexpr (P::AFFINE != 0) {
            parts[2 * image * channels + c] = f32(gx * inverse);
            parts[(2 * image + 1) * channels + c] = f32(g);
            g *= weight[c];
            gx *= weight[c];
        }
        plain += g;
        moment += gx;
    }
    f32* to = factors + 3 * image * channels;
    for (i64 c = first; c < first + width; ++c) {
        to[c] = f32(P::AFFINE != 0 ? inverse * weight[c] : inverse);
        to[channels + c] = f32(inverse * plain / number);
        to[2 * channels + c] = f32(inverse * inverse * inverse * moment / number);
    }
}
