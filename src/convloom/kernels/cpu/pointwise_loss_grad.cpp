// dx = the slope of the loss KIND at x and its target t, times dloss / divisor.
//
// Arguments: x, t (x where the loss has no target), dloss, dx, elements, the loss's parameter a,
// divisor (reals). An item is CHUNK consecutive elements. Limit: memory bandwidth, or the
// exponential of a vector.
#include "pointwise_loss.h"

namespace convloom {

template <class P>
void pointwise_loss_grad(const Arg* args, long item, Worker*) {
    const f32* x = static_cast<const f32*>(args[0].address);
    const f32* t = static_cast<const f32*>(args[1].address);
    f32* dx = static_cast<f32*>(args[3].address);
    const i64 last = min((item + 1) * P::CHUNK, args[4].integer);
    const f32 a = f32(args[5].real);
    const vec scale = broadcast(*static_cast<const f32*>(args[2].address) / f32(args[6].real));
    for (i64 i = item * P::CHUNK; i < last; i += LANES) {
        const i64 left = last - i;
        const vec slope = loss_slope<P::KIND>(load_tail(x + i, left), load_tail(t + i, left), a);
        store_tail(dx + i, slope * scale, left);
    }
}

}  // namespace convloom
