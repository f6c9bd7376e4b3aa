// cuda-convnet's update over all parameters at once, the rate inside the velocity:
//     v = momentum * v - eps * g - eps * decay * w;  w = w + v
//
// Arguments: hyper (float64: for n = P::COUNT tensors each eps, momentum, decay), then lists of n:
// w, g, v, new w, new v (addresses; new may be the old), divisors (i64, one a row, that divide eps
// and decay; null where there are none), elements of a row (0 without divisors), size (integers).
// With P::EVERY > 1 two more lists, sum and new sum: g is the mean of so many minibatches. hyper's
// next number says whether the sum goes on, the one after whether this is the last of them; before
// it nothing but the sum is new.
// With P::ADAPTIVE five more lists: m, s, new m, new s (null where there are none), floor (real):
//     m = momentum m + (1 - momentum) g;  s = momentum s + (1 - momentum) g^2
//     v = 0.9 v - eps * g / sqrt(s + m + floor);  w = w + v
// An item is CHUNK elements of one tensor. Limit: memory bandwidth, five passes over a parameter.
#include "segments.h"

namespace convloom {

// sum = g, with `before` the sum so far g + before.
CL_INLINE void add_up(const Chunk& chunk, const f32* g, const f32* before, f32* sum) {
    for (i64 i = chunk.first; i < chunk.last; i += LANES) {
        vec total = load_tail(g + i, chunk.last - i);
        if (before) total += load_tail(before + i, chunk.last - i);
        store_tail(sum + i, total, chunk.last - i);
    }
}

CL_INLINE void copy(const Chunk& chunk, const f32* from, f32* to) {
    for (i64 i = chunk.first; i < chunk.last; i += LANES)
        store_tail(to + i, load_tail(from + i, chunk.last - i), chunk.last - i);
}

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
    const vec momentum = broadcast(rate(1)), rest = broadcast(1.0f - rate(1));
    const f32 *mean = nullptr, *square = nullptr;
    f32 *new_mean = nullptr, *new_square = nullptr;
    vec floor = broadcast(0.0f);
    constexpr long means = P::EVERY > 1 ? 10 : 8;
    if constexpr (P::ADAPTIVE != 0) {
        mean = at(means), square = at(means + 1);
        new_mean = at(means + 2), new_square = at(means + 3);
        floor = broadcast(f32(lists[(means + 4) * n + chunk.tensor].real));
    }
    if constexpr (P::EVERY > 1) {
        const bool keep = hyper[3 * n] != 0, move = hyper[3 * n + 1] != 0;
        add_up(chunk, g, keep ? at(8) : nullptr, at(9));
        g = at(9);
        if (!move) {
            copy(chunk, w, new_w), copy(chunk, v, new_v);
            if (mean) copy(chunk, mean, new_mean), copy(chunk, square, new_square);
            return;
        }
    }
    for (i64 first = chunk.first, last; first < chunk.last; first = last) {
        last = divisors ? min((first / row + 1) * row, chunk.last) : chunk.last;
        const f32 divisor = divisors ? f32(divisors[first / row]) : 1.0f;
        const f32 rate_w = rate(0) / divisor, rate_decay = rate_w * (rate(2) / divisor);
        const vec eps = broadcast(-rate_w), decay = broadcast(-rate_decay);
        for (i64 i = first; i < last; i += LANES) {
            const i64 left = last - i;
            const vec old = load_tail(w + i, left);
            vec gradient = load_tail(g + i, left);
            if constexpr (P::EVERY > 1) gradient /= broadcast(f32(P::EVERY));
            vec velocity = load_tail(v + i, left);
            if (P::ADAPTIVE != 0 && mean) {
                const vec m = fma(rest, gradient, momentum * load_tail(mean + i, left));
                const vec s = fma(rest, gradient * gradient, momentum * load_tail(square + i, left));
                store_tail(new_mean + i, m, left);
                store_tail(new_square + i, s, left);
                velocity = fma(eps, gradient / root(s + m + floor), 0.9f * velocity);
            } else {
                velocity = fma(eps, gradient, momentum * velocity);
                // 0 times an infinite weight would be NaN
                if (rate_decay != 0) velocity = fma(decay, old, velocity);
            }
            store_tail(new_v + i, velocity, left);
            store_tail(new_w + i, old + velocity, left);
        }
    }
}

}  // namespace convloom
