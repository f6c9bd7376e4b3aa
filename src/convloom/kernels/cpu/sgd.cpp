// Stochastic gradient descent over all parameters at once:
//     g = scale * g + decay * p;  v = momentum * v + g;  p = p - rate * (v or g + momentum * v)
//
// Arguments: hyper, [norm], then for n = P::COUNT tensors each: p, g, v, new p, new v (addresses;
// new may be the old), size (integer), rate and decay multipliers (real): eight lists of n.
// An item is CHUNK elements of one tensor. Limit: memory bandwidth, five passes over a parameter.
#include "segments.h"

namespace convloom {

template <class P>
void sgd(const Arg* args, long item, Worker*) {
    constexpr long n = P::COUNT;
    const f64* hyper = static_cast<const f64*>(args[0].address);
    const Arg* lists = args + 1 + P::CLIP;
    const Chunk chunk = find_chunk<P::CHUNK>(lists + 5 * n, n, item);
    const auto at = [&](long list) {
        return static_cast<f32*>(lists[list * n + chunk.tensor].address);
    };
    const f32 *p = at(0), *g = at(1), *v = at(2);
    f32 *new_p = at(3), *new_v = at(4);
    const vec rate = broadcast(f32(hyper[LR] * lists[6 * n + chunk.tensor].real));
    const f64 decay_rate = hyper[WEIGHT_DECAY] * lists[7 * n + chunk.tensor].real;
    const vec decay = broadcast(f32(decay_rate)), momentum = broadcast(f32(hyper[MOMENTUM]));
    vec scale = broadcast(1.0f);
    if constexpr (P::CLIP != 0)
        scale = broadcast(f32(clip_scale(hyper[MAX_NORM], *static_cast<f64*>(args[1].address))));
    for (i64 i = chunk.first; i < chunk.last; i += LANES) {
        const i64 left = chunk.last - i;
        const vec old = load_tail(p + i, left);
        vec gradient = load_tail(g + i, left);
        if constexpr (P::CLIP != 0) gradient *= scale;
        if (decay_rate != 0) gradient = fma(decay, old, gradient);
        const vec velocity = fma(momentum, load_tail(v + i, left), gradient);
        const vec direction = P::NESTEROV ? fma(momentum, velocity, gradient) : velocity;
        store_tail(new_p + i, old - rate * direction, left);
        store_tail(new_v + i, velocity, left);
    }
}

}  // namespace convloom
