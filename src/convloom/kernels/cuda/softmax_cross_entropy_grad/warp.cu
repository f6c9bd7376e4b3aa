// dlogits[n,k] = (probability[n,k] * (sum of t[n]) - t[n,k]) * dloss / N, for distributions t
//
// A warp takes a sample: its lanes add up t by shuffles, then write neighbouring elements.
// Against naive: t is read twice, not K + 1 times.
// Limit: 12 bytes of memory traffic an element.
#include "device/loss.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void softmax_cross_entropy_grad_warp(const f32* probability, const void* target,
                                                const f32* dloss, f32* dlogits, i64 n,
                                                f32 smoothing) {
    const i64 sample = global_thread() / 32;
    const int lane = threadIdx.x % 32;
    if (sample >= n) return;  // a whole warp
    f32 share = 0.0f;
    for (i64 k = lane; k < P::K; k += 32) share += target_weight<P>(target, sample, k, smoothing);
    share = warp_sum(share);
    const f32 scale = *dloss / f32(n);
    for (i64 k = lane; k < P::K; k += 32) {
        const i64 i = sample * P::K + k;
        dlogits[i] =
            (probability[i] * share - target_weight<P>(target, sample, k, smoothing)) * scale;
    }
}
