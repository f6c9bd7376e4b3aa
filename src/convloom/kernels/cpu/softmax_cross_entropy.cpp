// Per sample: probability = softmax(logits), and the sum over a chunk's samples of
// -sum over k of t[k] * log probability[k].
//
// Arguments: logits (N,K), target, probability (N,K), partial sums (f64, one an item), N,
// smoothing (real). An item is ROWS samples; vectors run along classes. Logits are shifted by
// their maximum (a NaN wins it); exponentials are float32, their sum and the loss float64.
// A label outside [0, K) makes the loss NaN; the host refuses it before a run.
// Limit: about 20 instructions for an exponential of a vector.
#include "softmax.h"

namespace convloom {

// The loss of one sample; log_sum is the logarithm of the sum of exp(logits[k] - top).
template <class P>
static f64 sample_loss(const f32* logits, const void* target, i64 sample, f64 top, f64 log_sum,
                       f64 smoothing) {
    const auto log_probability = [&](i64 k) { return (f64(logits[k]) - top) - log_sum; };
    const f64 spread = smoothing / P::K;
    if constexpr (P::PROBABILITY != 0) {
        const f32* t = static_cast<const f32*>(target) + sample * P::K;
        f64 loss = 0;
        for (i64 k = 0; k < P::K; ++k) {
            const f64 weight = smoothing != 0 ? f64(t[k]) * (1 - smoothing) + spread : f64(t[k]);
            loss -= weight * log_probability(k);
        }
        return loss;
    } else {
        const i64 label = static_cast<const i64*>(target)[sample];
        if (label < 0 || label >= P::K) return __builtin_nan("");
        if (smoothing == 0) return -log_probability(label);
        f64 loss = 0;
        for (i64 k = 0; k < P::K; ++k)
            loss -= ((k == label ? 1 - smoothing : 0) + spread) * log_probability(k);
        return loss;
    }
}

template <class P>
void softmax_cross_entropy(const Arg* args, long item, Worker*) {
    const i64 first = item * P::ROWS, last = min(first + P::ROWS, args[4].integer);
    f64 loss = 0;
    for (i64 n = first; n < last; ++n) {
        const f32* logits = static_cast<const f32*>(args[0].address) + n * P::K;
        f32* probability = static_cast<f32*>(args[2].address) + n * P::K;
        const f32 top = greatest(logits, P::K);
        const f64 sum = exponentials(logits, top, probability, P::K);
        const vec share = broadcast(f32(1 / sum));
        for (i64 k = 0; k < P::K; k += LANES)
            store_tail(probability + k, load_tail(probability + k, P::K - k) * share, P::K - k);
        loss += sample_loss<P>(logits, args[1].address, n, top, __builtin_log(sum), args[5].real);
    }
    static_cast<f64*>(args[3].address)[item] = loss;
}

}  // namespace convloom
