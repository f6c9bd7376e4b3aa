// Filters and bias with the normalisation behind them folded in: w' = w s, b' = (b - mean) s + shift
//
// s = weight / sqrt(variance + eps). One thread a weight; the first of a filter makes its bias.
// Limit: 8 bytes of memory traffic a weight, and a root in float64.
#include "device/index.cuh"

template <class P>
__global__ void fold_batch_norm_naive(const f32* w, const f32* mean, const f32* variance,
                                      f32* folded, f32* bias, i64 filters, i64 size, f32 eps,
                                      const f32* weight, const f32* shift, const f32* old) {
    const i64 i = global_thread(), k = i / size;
    if (k >= filters) return;
    f32 scale = f32(1.0 / sqrt(f64(variance[k]) + f64(eps)));
    if constexpr (P::AFFINE != 0) scale *= weight[k];
    folded[i] = w[i] * scale;
    if (i % size == 0) {
        const f32 b = P::BIAS != 0 ? old[k] : 0.0f;
        bias[k] = fmaf(b - mean[k], scale, P::AFFINE != 0 ? shift[k] : 0.0f);
    }
}
