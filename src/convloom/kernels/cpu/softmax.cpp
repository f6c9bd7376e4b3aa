// y = exp(x - max x) / sum exp(x - max x), or its logarithm (P::LOG), along one axis.
//
// The tensor is (outer, K, inner) in memory. Arguments: x, y, outer, K, inner, rows an item.
// With P::TOGETHER inner is 1: an item is some rows of K neighbours, vectors run along them, the
// sum is float64. Else an item is a block of inner positions of one outer index, vectors run
// across them, and each lane adds its own K terms. A NaN wins the maximum.
// Limit: about 20 instructions for an exponential of a vector.
#include "functions.h"
#include "softmax.h"

namespace convloom {

template <bool LOG>
CL_INLINE void softmax_row(const f32* x, f32* y, i64 K) {
    const f32 top = greatest(x, K);
    const f64 sum = exponentials(x, top, y, K);
    const vec share = broadcast(f32(1 / sum)), shift = broadcast(top);
    const vec log_sum = broadcast(f32(__builtin_log(sum)));
    for (i64 k = 0; k < K; k += LANES)
        store_tail(y + k,
                   LOG ? load_tail(x + k, K - k) - shift - log_sum
                       : load_tail(y + k, K - k) * share,
                   K - k);
}

// K terms at a distance of `inner`, for `left` lanes.
template <bool LOG>
CL_INLINE void softmax_lanes(const f32* x, f32* y, i64 K, i64 inner, i64 left) {
    vec top = broadcast(-__builtin_inff()), sum = zero();
    for (i64 k = 0; k < K; ++k) top = vmax(top, load_tail(x + k * inner, left));
    for (i64 k = 0; k < K; ++k) {
        const vec power = exp_nonpositive(load_tail(x + k * inner, left) - top);
        sum += power;
        if (!LOG) store_tail(y + k * inner, power, left);
    }
    const vec share = broadcast(1.0f) / sum, log_sum = natural_log(sum);
    for (i64 k = 0; k < K; ++k)
        store_tail(y + k * inner,
                   LOG ? load_tail(x + k * inner, left) - top - log_sum
                       : load_tail(y + k * inner, left) * share,
                   left);
}

template <class P>
void softmax(const Arg* args, long item, Worker*) {
    const f32* x = static_cast<const f32*>(args[0].address);
    f32* y = static_cast<f32*>(args[1].address);
    const i64 K = args[3].integer;
    if constexpr (P::TOGETHER != 0) {
        const i64 rows = args[5].integer, last = min((item + 1) * rows, args[2].integer);
        for (i64 n = item * rows; n < last; ++n) softmax_row<P::LOG != 0>(x + n * K, y + n * K, K);
    } else {
        const i64 inner = args[4].integer, blocks = ceil_div(inner, P::BLOCK);
        const i64 start = item / blocks * K * inner, first = item % blocks * P::BLOCK;
        const i64 last = min(first + P::BLOCK, inner);
        for (i64 i = first; i < last; i += LANES)
            softmax_lanes<P::LOG != 0>(x + start + i, y + start + i, K, inner, last - i);
    }
}

}  // namespace convloom
