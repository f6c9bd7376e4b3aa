// error = {share of samples wrong at top 1, share wrong at top TOP}; equal scores share the places.
//
// Arguments: scores (N,K), labels, error (2), N. One item: two comparisons a score. A class whose
// score is greater than the label's, or NaN, is ahead; a label is right by (k - ahead) / equal,
// from 0 to 1; one whose own score is NaN is wrong. Sums are float64; N = 0 gives NaN.
// Limit: one thread; about a vector of classes a nanosecond.
#include "simd.h"

namespace convloom {

struct Rivals {
    i64 ahead, equal;
};

template <long K>
static Rivals rivals_of(const f32* scores, i64 label) {
    const vec own = broadcast(scores[label]);
    const ivec ones = broadcast_i32(1);
    ivec ahead = broadcast_i32(0), equal = broadcast_i32(0);
    for (i64 k = 0; k < K; k += LANES) {
        const vec value = load_tail(scores + k, K - k);
        const ivec inside = (broadcast_i32(i32(k)) + lane_index()) < i32(K);
        // A negated comparison, so that a NaN rival ranks before every number.
        ahead += select_i32(~(value <= own) & inside, ones, ivec{});
        equal += select_i32((value == own) & inside, ones, ivec{});
    }
    Rivals found{0, 0};
    for (int l = 0; l < LANES; ++l) {
        found.ahead += ahead[l];
        found.equal += equal[l];
    }
    return found;
}

static f64 wrong_at(i64 k, Rivals rivals) {
    const i64 places = k - rivals.ahead;
    if (places <= 0) return 1.0;
    return places >= rivals.equal ? 0.0 : 1.0 - f64(places) / f64(rivals.equal);
}

template <class P>
void topk_error(const Arg* args, long, Worker*) {
    f64 wrong[2] = {0.0, 0.0};
    const i64 n = args[3].integer;
    for (i64 sample = 0; sample < n; ++sample) {
        const f32* scores = static_cast<const f32*>(args[0].address) + sample * P::K;
        const i64 label = static_cast<const i64*>(args[1].address)[sample];
        Rivals rivals{P::TOP, 1};
        if (label >= 0 && label < P::K && scores[label] == scores[label])
            rivals = rivals_of<P::K>(scores, label);
        wrong[0] += wrong_at(1, rivals);
        wrong[1] += wrong_at(P::TOP, rivals);
    }
    f32* error = static_cast<f32*>(args[2].address);
    error[0] = f32(wrong[0] / f64(n));
    error[1] = f32(wrong[1] / f64(n));
}

}  // namespace convloom
