// dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) with P::LOG: softmax's gradient along one axis.
//
// The tensor is (outer, K, inner) in memory. Arguments: dy, y, dx, outer, K, inner, rows an item.
// With P::TOGETHER inner is 1: an item is some rows of K neighbours, and vectors run along them.
// Else an item is a block of inner positions of one outer index, and vectors run across them.
// Limit: memory bandwidth; with P::LOG an exponential.
#include "functions.h"

namespace convloom {

template <bool LOG>
CL_INLINE vec softmax_slope(vec dy, vec y, vec sum) {
    return LOG ? dy - exponential(y) * sum : y * (dy - sum);
}

template <bool LOG>
CL_INLINE void softmax_grad_row(const f32* dy, const f32* y, f32* dx, i64 K) {
    vec part = zero();
    for (i64 k = 0; k < K; k += LANES) {
        const vec g = load_tail(dy + k, K - k);
        part = LOG ? part + g : fma(g, load_tail(y + k, K - k), part);
    }
    const vec sum = broadcast(horizontal_sum(part));
    for (i64 k = 0; k < K; k += LANES) {
        const vec g = load_tail(dy + k, K - k), v = load_tail(y + k, K - k);
        store_tail(dx + k, softmax_slope<LOG>(g, v, sum), K - k);
    }
}

template <bool LOG>
CL_INLINE void softmax_grad_lanes(const f32* dy, const f32* y, f32* dx, i64 K, i64 inner,
                                  i64 left) {
    vec sum = zero();
    for (i64 k = 0; k < K; ++k) {
        const vec g = load_tail(dy + k * inner, left);
        sum = LOG ? sum + g : fma(g, load_tail(y + k * inner, left), sum);
    }
    for (i64 k = 0; k < K; ++k) {
        const vec g = load_tail(dy + k * inner, left), v = load_tail(y + k * inner, left);
        store_tail(dx + k * inner, softmax_slope<LOG>(g, v, sum), left);
    }
}

template <class P>
void softmax_grad(const Arg* args, long item, Worker*) {
    const f32* dy = static_cast<const f32*>(args[0].address);
    const f32* y = static_cast<const f32*>(args[1].address);
    f32* dx = static_cast<f32*>(args[2].address);
    const i64 K = args[4].integer;
    if constexpr (P::TOGETHER != 0) {
        const i64 rows = args[6].integer, last = min((item + 1) * rows, args[3].integer);
        for (i64 n = item * rows; n < last; ++n)
            softmax_grad_row<P::LOG != 0>(dy + n * K, y + n * K, dx + n * K, K);
    } else {
        const i64 inner = args[5].integer, blocks = ceil_div(inner, P::BLOCK);
        const i64 start = item / blocks * K * inner, first = item % blocks * P::BLOCK;
        const i64 last = min(first + P::BLOCK, inner);
        for (i64 i = first; i < last; i += LANES)
            softmax_grad_lanes<P::LOG != 0>(dy + start + i, y + start + i, dx + start + i, K, inner,
                                            last - i);
    }
}

}  // namespace convloom
