// What norm_grad_apply multiplies by, and each image's part of the gradients of weight and bias.
//
// Arguments: partials of norm_grad_sums, channels, rows of an image, chunks of an image, groups,
// 1/std (image, group), factors (out; image, 3, channel), then with P::AFFINE weight, dweight and
// dbias by image (out; image, channel). An item is an image; sums in order, in float64. With
// w = weight and h = (x - mean) / std: dx = w dy / std - mean(w dy) / std - h mean(w dy h) / std.
#include "simd.h"

namespace convloom {

template <class P>
void group_norm_grad_finish(const Arg* args, long item, Worker*) {
    const i64 channels = args[1].integer, rows = args[2].integer, chunks = args[3].integer;
    const i64 groups = args[4].integer, width = channels / groups;
    const f32* partials = (const f32*)args[0].address + item * chunks * 2 * channels;
    const f32* weight = P::AFFINE ? (const f32*)args[7].address : nullptr;
    f32* factors = (f32*)args[6].address + item * 3 * channels;
    for (i64 group = 0; group < groups; ++group) {
        const f64 invstd = ((const f32*)args[5].address)[item * groups + group];
        f64 plain = 0, moment = 0;
        for (i64 c = group * width; c < (group + 1) * width; ++c) {
            f64 g = 0, gx = 0;
            for (i64 i = 0; i < chunks; ++i) {
                g += partials[2 * i * channels + c];
                gx += partials[(2 * i + 1) * channels + c];
            }
            if constexpr (P::AFFINE != 0) {
                ((f32*)args[8].address)[item * channels + c] = f32(gx * invstd);
                ((f32*)args[9].address)[item * channels + c] = f32(g);
                g *= weight[c], gx *= weight[c];
            }
            plain += g, moment += gx;
        }
        const f64 number = f64(rows * width);
        for (i64 c = group * width; c < (group + 1) * width; ++c) {
            factors[c] = f32(P::AFFINE ? invstd * weight[c] : invstd);
            factors[channels + c] = f32(invstd * plain / number);
            factors[2 * channels + c] = f32(invstd * invstd * invstd * moment / number);
        }
    }
}

}  // namespace convloom
