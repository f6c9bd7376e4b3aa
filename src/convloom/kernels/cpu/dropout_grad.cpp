// dx = dy * (mask * scale): a non-finite dy under a zero mask gives NaN, as in PyTorch.
//
// Arguments: dy, mask (u8), dx, elements, scale (real). An item is CHUNK consecutive elements.
// Limit: memory bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void dropout_grad(const Arg* args, long item, Worker*) {
    const f32* dy = static_cast<const f32*>(args[0].address);
    const u8* mask = static_cast<const u8*>(args[1].address);
    f32* dx = static_cast<f32*>(args[2].address);
    const i64 last = min((item + 1) * P::CHUNK, args[3].integer);
    const f32 scale = f32(args[4].real);
    for (i64 i = item * P::CHUNK; i < last; ++i) dx[i] = dy[i] * (mask[i] ? scale : 0.0f);
}

}  // namespace convloom
