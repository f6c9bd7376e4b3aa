// Filters and bias with the normalisation behind them folded in: w' = w s, b' = (b - mean) s + shift
//
// One thread a weight; the first of a filter makes its bias.
// Limit: 8 bytes of memory traffic a weight.
#include "device/index.cuh"

template <class P>
__global__ void fold_batch_norm_naive(const f32* w, const f32* scale, const f32* mean, f32* folded,
                                      f32* bias, i64 filters, i64 size, const f32* shift,
                                      const f32* old) {
    const i64 i = global_thread(), k = i / size;
    if (k >= filters) return;
    folded[i] = w[i] * scale[k];
    if (i % size == 0) {
        const f32 b = P::BIAS != 0 ? old[k] : 0.0f;
        bias[k] = fmaf(b - mean[k], scale[k], P::AFFINE != 0 ? shift[k] : 0.0f);
    }
}
