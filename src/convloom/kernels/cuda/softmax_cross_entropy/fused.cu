// probability = softmax(logits) and loss = mean over the samples of their cross-entropy, in one
// kernel.
//
// One block; each thread takes every THREADS-th sample, and the block adds up its threads' losses.
// Exponentials are float32, their sums and the loss float64.
// Against naive: one launch for two, no losses in memory, no float64 exponentials.
// Limit: one multiprocessor; the selector sends it small batches only.
#include "device/loss.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void softmax_cross_entropy_fused(const f32* logits, const void* target,
                                            f32* probability, f32* mean, i64 n, f32 smoothing) {
    f64 total = 0.0;
    for (i64 sample = threadIdx.x; sample < n; sample += P::THREADS) {
        const f32* row = logits + sample * P::K;
        f32 top = row[0];
        for (i64 k = 1; k < P::K; ++k) top = greater_or_nan(top, row[k]);
        f64 sum = 0.0;
        for (i64 k = 0; k < P::K; ++k) sum += expf(row[k] - top);
        const f64 log_sum = log(sum);
        const f32 share = f32(1.0 / sum);
        for (i64 k = 0; k < P::K; ++k) probability[sample * P::K + k] = expf(row[k] - top) * share;
        total += sample_loss<P>(target, sample, smoothing, [&](i64 k) {
            return f64(row[k]) - f64(top) - log_sum;
        });
    }
    total = block_sum<P::THREADS>(total);
    if (threadIdx.x == 0) *mean = f32(total / f64(n));
}
