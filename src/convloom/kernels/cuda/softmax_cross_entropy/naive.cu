// probability = softmax(logits), loss = -sum over k of t[k] * log probability[k], for each sample
//
// One thread a sample: three walks over its K logits, in float64 throughout. The mean over the
// samples is mean_of_partials.
// Limit: K exponentials and logarithms in float64 a thread, which most GPUs do slowly.
#include "device/loss.cuh"

template <class P>
__global__ void softmax_cross_entropy_naive(const f32* logits, const void* target,
                                            f32* probability, f64* loss, i64 n, f32 smoothing) {
    const i64 sample = global_thread();
    if (sample >= n) return;
    const f32* row = logits + sample * P::K;
    f32 top = row[0];
    for (i64 k = 1; k < P::K; ++k) top = greater_or_nan(top, row[k]);
    f64 sum = 0.0;
    for (i64 k = 0; k < P::K; ++k) sum += exp(f64(row[k]) - f64(top));
    const f64 log_sum = log(sum);
    const auto log_probability = [&](i64 k) { return f64(row[k]) - f64(top) - log_sum; };
    for (i64 k = 0; k < P::K; ++k) probability[sample * P::K + k] = f32(exp(log_probability(k)));
    loss[sample] = sample_loss<P>(target, sample, smoothing, log_probability);
}
