// dx = 0 where y <= 0, else dy: a NaN in y passes dy.
//
// Arguments: dy, y, dx, number of elements. An item is CHUNK consecutive elements. Limit: memory
// bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void relu_grad(const Arg* args, long item, Worker*) {
    const f32* dy = static_cast<const f32*>(args[0].address);
    const f32* y = static_cast<const f32*>(args[1].address);
    f32* dx = static_cast<f32*>(args[2].address);
    const i64 last = min((item + 1) * P::CHUNK, args[3].integer);
    for (i64 i = item * P::CHUNK; i < last; i += LANES) {
        const i64 left = last - i;
        store_tail(dx + i, relu_mask(load_tail(y + i, left), load_tail(dy + i, left)), left);
    }
}

}  // namespace convloom
