// dx = dy times the slope of the function KIND, element by element.
//
// Arguments: dy, v (the activation's x or y, as ops/activation.py says; dy where neither is read),
// dx, number of elements, the function's parameters a and b (real). An item is CHUNK consecutive
// elements. Limit: as the activation's.
#include "activation.h"

namespace convloom {

template <class P>
void activation_grad(const Arg* args, long item, Worker*) {
    const f32* dy = static_cast<const f32*>(args[0].address);
    const f32* v = static_cast<const f32*>(args[1].address);
    f32* dx = static_cast<f32*>(args[2].address);
    const i64 last = min((item + 1) * P::CHUNK, args[3].integer);
    const f32 a = f32(args[4].real), b = f32(args[5].real);
    for (i64 i = item * P::CHUNK; i < last; i += LANES) {
        const i64 left = last - i;
        const vec gradient = load_tail(dy + i, left), kept = load_tail(v + i, left);
        store_tail(dx + i, activation_gradient<P::KIND>(gradient, kept, a, b), left);
    }
}

}  // namespace convloom
