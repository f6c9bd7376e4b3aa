// cuda-convnet's update over all parameters at once, the rate inside the velocity:
//     v = momentum * v - eps * g - eps * decay * w;  w = w + v
//
// Arguments: hyper (float64: for n = P::COUNT tensors each eps, momentum, decay), then lists of n:
// w, g, v, new w, new v (addresses; new may be the old), divisors (i64, one a row, that divide eps
// and decay; null where there are none), elements of a row (0 without divisors), size (integers).
// An item is CHUNK elements of one tensor. Limit: memory bandwidth, five passes over a parameter.
#include "segments.h"

namespace convloom {

template <class P>
void velocity_sgd(const Arg* args, long item, Worker*) {
    constexpr long n = P::COUNT;
    const f64* hyper = static_cast<const f64*>(args[0].address);
    const Arg* lists = args + 1;
    const Chunk chunk = find_chunk<P::CHUNK>(lists + 7 * n, n, item);
    const auto at = [&](long list) {
        return static_cast<f32*>(lists[list * n + chunk.tensor].address);
    };
    const auto rate = [&](long list) { return f32(hyper[list * n + chunk.tensor]); };
    const f32 *w = at(0), *g = at(1), *v = at(2);
    f32 *new_w = at(3), *new_v = at(4);
    const i64* divisors = static_cast<const i64*>(lists[5 * n + chunk.tensor].address);
    const i64 row = lists[6 * n + chunk.tensor].integer;
    const vec momentum = broadcast(rate(1));
    for (i64 first = chunk.first, last; first < chunk.last; first = last) {
        last = divisors ? min((first / row + 1) * row, chunk.last) : chunk.last;
        const f32 divisor = divisors ? f32(divisors[first / row]) : 1.0f;
        const f32 rate_w = rate(0) / divisor, rate_decay = rate_w * (rate(2) / divisor);
        const vec eps = broadcast(-rate_w), decay = broadcast(-rate_decay);
        for (i64 i = first; i < last; i += LANES) {
            const i64 left = last - i;
            const vec old = load_tail(w + i, left);
            vec velocity = fma(eps, load_tail(g + i, left), momentum * load_tail(v + i, left));
            // 0 times an infinite weight would be NaN
            if (rate_decay != 0) velocity = fma(decay, old, velocity);
            store_tail(new_v + i, velocity, left);
            store_tail(new_w + i, old + velocity, left);
        }
    }
}

}  // namespace convloom
