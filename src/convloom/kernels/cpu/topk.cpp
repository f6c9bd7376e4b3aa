// correct = {samples whose label has rank 0, samples whose label has rank below TOP}.
//
// Arguments: logits (N,K), labels, correct (i32, 2), N. One item: a comparison a logit. The rank
// is the number of other classes whose logit is greater, or equal and earlier, or NaN; a label
// whose own logit is NaN is never right.
// Limit: one thread; about a vector of classes a nanosecond.
#include "simd.h"

namespace convloom {

template <long K>
static i64 rank_of(const f32* logits, i64 label) {
    const vec own = broadcast(logits[label]);
    const ivec mine = broadcast_i32(i32(label)), ones = broadcast_i32(1);
    ivec count = broadcast_i32(0);
    for (i64 k = 0; k < K; k += LANES) {
        const vec value = load_tail(logits + k, K - k);
        const ivec at = broadcast_i32(i32(k)) + lane_index();
        // Negated comparisons, so that a NaN rival ranks before every number.
        const ivec earlier = (at < mine) & ~(value < own), later = (at > mine) & ~(value <= own);
        count += select_i32((earlier | later) & (at < i32(K)), ones, ivec{});
    }
    i64 rank = 0;
    for (int l = 0; l < LANES; ++l) rank += count[l];
    return rank;
}

template <class P>
void topk(const Arg* args, long, Worker*) {
    i32 right[2] = {0, 0};
    for (i64 n = 0; n < args[3].integer; ++n) {
        const f32* logits = static_cast<const f32*>(args[0].address) + n * P::K;
        const i64 label = static_cast<const i64*>(args[1].address)[n];
        if (label < 0 || label >= P::K || logits[label] != logits[label]) continue;
        const i64 rank = rank_of<P::K>(logits, label);
        right[0] += rank < 1;
        right[1] += rank < P::TOP;
    }
    i32* correct = static_cast<i32*>(args[2].address);
    correct[0] = right[0];
    correct[1] = right[1];
}

}  // namespace convloom
