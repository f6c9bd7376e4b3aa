// Gradients of weight and bias from the chunks' sums, and what norm_grad_apply multiplies by.
//
// Arguments: partials of norm_grad_sums, channels, rows, chunks, 1/std, factors (out; (3, channel):
// a, b and c of dx = a g - b - c (x - mean)), then with P::AFFINE weight, dweight (out), dbias (out).
// An item is 16 channels; partials are added in order, in float64.
#include "simd.h"

namespace convloom {

template <class P>
void batch_norm_grad_finish(const Arg* args, long item, Worker*) {
    const f32* partials = (const f32*)args[0].address;
    const i64 channels = args[1].integer, rows = args[2].integer, chunks = args[3].integer;
    f32* factors = (f32*)args[5].address;
    const i64 last = min((item + 1) * 16, channels);
    for (i64 c = item * 16; c < last; ++c) {
        f64 plain = 0, moment = 0;
        for (i64 i = 0; i < chunks; ++i) {
            plain += partials[2 * i * channels + c];
            moment += partials[(2 * i + 1) * channels + c];
        }
        const f64 invstd = ((const f32*)args[4].address)[c];
        f64 scale = invstd;
        if constexpr (P::AFFINE != 0) {
            scale *= ((const f32*)args[6].address)[c];
            ((f32*)args[7].address)[c] = f32(moment * invstd);
            ((f32*)args[8].address)[c] = f32(plain);
        }
        factors[c] = f32(scale);
        factors[channels + c] = f32(scale * plain / f64(rows));
        factors[2 * channels + c] = f32(scale * invstd * invstd * moment / f64(rows));
    }
}

}  // namespace convloom
