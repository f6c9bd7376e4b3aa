// Gradients of filters and, with BIAS, of the bias, from one reading of dy. Where 2x2 pooling
// followed the convolution (POOL), dy is the gradient of the pooled map and `index` says which cell
// of its window each belongs to.
//
// One thread a weight, in the memory order of dw, then one a bias; each walks the whole batch.
// Against naive: one launch for two gradients, and with a pool a quarter of the products.
// Limit: as naive.
#include "device/conv.cuh"

// Sum of the gradient over a filter's positions, in float64: it is long, and its terms mostly
// cancel.
template <class P>
__device__ f32 conv2d_fused_bias(const f32* dy, i64 filter, i64 n) {
    constexpr i64 rows = P::POOL != 0 ? Conv<P>::POOL_ROWS : P::OH;
    constexpr i64 cols = P::POOL != 0 ? Conv<P>::POOL_COLS : P::OW;
    f64 sum = 0.0;
    for (i64 image = 0; image < n; ++image) {
        const f32* from = dy + image * P::K * rows * cols;
        for (i64 p = 0; p < rows; ++p)
            for (i64 q = 0; q < cols; ++q)
                sum += from[offset_of<P::K, rows, cols, P::YROW != 0>(filter, p, q)];
    }
    return f32(sum);
}

template <class P>
__global__ void conv2d_wgrad_fused(const f32* x, const f32* dy, const u8* index, f32* dw, f32* db,
                                   i64 n) {
    constexpr i64 weights = P::K * Conv<P>::DEPTH;
    const i64 i = global_thread();
    if (i < weights) {
        const Place at = Conv<P>::w_place(i);
        if constexpr (P::POOL != 0)
            dw[i] = Conv<P>::pooled_filter_gradient(x, dy, index, at, n);
        else
            dw[i] = Conv<P>::filter_gradient(x, DenseGradient<P>{dy}, at, n);
    } else if (P::BIAS != 0 && i - weights < P::K) {
        db[i - weights] = conv2d_fused_bias<P>(dy, i - weights, n);
    }
}
