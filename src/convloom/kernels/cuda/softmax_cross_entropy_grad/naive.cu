// dlogits[n,k] = (probability[n,k] * (sum of t[n]) - t[n,k]) * dloss / N
//
// One thread an element; where t is a distribution, each adds up its sample's t by itself.
// Limit: 12 bytes of memory traffic an element (labels), K more loads each (distributions).
#include "device/loss.cuh"

template <class P>
__global__ void softmax_cross_entropy_grad_naive(const f32* probability, const void* target,
                                                 const f32* dloss, f32* dlogits, i64 n,
                                                 f32 smoothing) {
    const i64 i = global_thread();
    if (i >= n * P::K) return;
    const i64 sample = i / P::K;
    f32 share = 1.0f;
    if constexpr (P::PROBABILITY != 0) {
        share = 0.0f;
        for (i64 k = 0; k < P::K; ++k) share += target_weight<P>(target, sample, k, smoothing);
    }
    const f32 t = target_weight<P>(target, sample, i % P::K, smoothing);
    dlogits[i] = (probability[i] * share - t) * (*dloss / f32(n));
}
