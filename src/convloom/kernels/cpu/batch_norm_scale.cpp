// scale = weight / sqrt(variance + eps), by channel: batch normalisation with known statistics.
//
// Arguments: variance, scale (out), channels, eps, and with P::AFFINE the weight. An item is 1024
// channels.
#include "simd.h"

namespace convloom {

template <class P>
void batch_norm_scale(const Arg* args, long item, Worker*) {
    const f32* variance = (const f32*)args[0].address;
    f32* scale = (f32*)args[1].address;
    const i64 last = min((item + 1) * 1024, args[2].integer);
    for (i64 c = item * 1024; c < last; ++c) {
        f32 s = f32(1 / __builtin_sqrt(f64(variance[c]) + args[3].real));
        if constexpr (P::AFFINE != 0) s *= ((const f32*)args[4].address)[c];
        scale[c] = s;
    }
}

}  // namespace convloom
