// AdamW over all parameters at once:
//     m = m + (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2
//     p = p (1 - lr * decay) - lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)
//
// Arguments: hyper, [norm], then for n = P::COUNT tensors each: p, g, m, v, new p, new m, new v
// (addresses; new may be the old), size (integer), rate and decay multipliers (real): ten lists
// of n. An item is CHUNK elements of one tensor. Limit: memory bandwidth, seven passes.
#include "segments.h"

namespace convloom {

template <class P>
void adamw(const Arg* args, long item, Worker*) {
    constexpr long n = P::COUNT;
    const f64* hyper = static_cast<const f64*>(args[0].address);
    const Arg* lists = args + 1 + P::CLIP;
    const Chunk chunk = find_chunk<P::CHUNK>(lists + 7 * n, n, item);
    const auto at = [&](long list) {
        return static_cast<f32*>(lists[list * n + chunk.tensor].address);
    };
    const f32 *p = at(0), *g = at(1), *m = at(2), *v = at(3);
    f32 *new_p = at(4), *new_m = at(5), *new_v = at(6);
    const f64 lr = hyper[LR] * lists[8 * n + chunk.tensor].real;
    const f64 weight_decay = hyper[WEIGHT_DECAY] * lists[9 * n + chunk.tensor].real;
    const vec kept = broadcast(f32(1 - lr * weight_decay));
    const vec step = broadcast(f32(lr / hyper[BIAS1]));
    const vec rest1 = broadcast(f32(1 - hyper[BETA1])), rest2 = broadcast(f32(1 - hyper[BETA2]));
    const vec beta2 = broadcast(f32(hyper[BETA2])), eps = broadcast(f32(hyper[EPS]));
    const vec bias2 = broadcast(f32(__builtin_sqrt(hyper[BIAS2])));
    vec scale = broadcast(1.0f);
    if constexpr (P::CLIP != 0)
        scale = broadcast(f32(clip_scale(hyper[MAX_NORM], *static_cast<f64*>(args[1].address))));
    for (i64 i = chunk.first; i < chunk.last; i += LANES) {
        const i64 left = chunk.last - i;
        vec gradient = load_tail(g + i, left);
        if constexpr (P::CLIP != 0) gradient *= scale;
        const vec old_m = load_tail(m + i, left);
        const vec first = fma(rest1, gradient - old_m, old_m);
        const vec second = fma(beta2, load_tail(v + i, left), rest2 * (gradient * gradient));
        const vec direction = first / (root(second) / bias2 + eps);
        store_tail(new_p + i, kept * load_tail(p + i, left) - step * direction, left);
        store_tail(new_m + i, first, left);
        store_tail(new_v + i, second, left);
    }
}

}  // namespace convloom
