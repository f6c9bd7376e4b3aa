// The sum over a chunk's elements of the loss KIND of x and its target t.
//
// Arguments: x, t (x where the loss has no target), partial sums (f64, one an item), elements, the
// loss's parameter a (real). An item is CHUNK consecutive elements; losses are float32, their sum
// float64. Limit: memory bandwidth, or the exponential and logarithm of a vector.
#include "f64.h"
#include "pointwise_loss.h"

namespace convloom {

template <class P>
void pointwise_loss(const Arg* args, long item, Worker*) {
    const f32* x = static_cast<const f32*>(args[0].address);
    const f32* t = static_cast<const f32*>(args[1].address);
    const i64 last = min((item + 1) * P::CHUNK, args[3].integer);
    const f32 a = f32(args[4].real);
    dvec low = {}, high = {};
    f32 lanes[LANES];
    i64 i = item * P::CHUNK;
    for (; i + LANES <= last; i += LANES) {
        store(lanes, loss_value<P::KIND>(load(x + i), load(t + i), a));
        low += widen(lanes);
        high += widen(lanes + HALF);
    }
    f64 sum = horizontal_sum(low + high);
    const i64 left = last - i;
    if (left > 0) {
        store(lanes, loss_value<P::KIND>(load_tail(x + i, left), load_tail(t + i, left), a));
        for (i64 l = 0; l < left; ++l) sum += lanes[l];
    }
    static_cast<f64*>(args[2].address)[item] = sum;
}

}  // namespace convloom
