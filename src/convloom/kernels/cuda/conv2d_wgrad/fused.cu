// Gradients of filters and, with BIAS, of the bias, from one reading of dy. Where 2x2 pooling
// followed the convolution (POOL), dy is the gradient of the pooled map and `index` says which cell
// of its window each belongs to.
//
// One thread a weight, in the memory order of dw, then one a bias, for each chunk of `images`
// images. Chunk c writes at dw + c * stride and db + c * stride; where there are several,
// sum_partials adds them up.
// Against naive: one reading for two gradients, and with a pool a quarter of the products.
// Limit: as naive.
#include "device/conv.cuh"

// Sum of the gradient over a filter's positions, in float64: it is long, and its terms mostly
// cancel.
template <class P>
__device__ f32 conv2d_fused_bias(const f32* dy, i64 filter, i64 first, i64 last) {
    constexpr i64 rows = P::POOL != 0 ? Conv<P>::POOL_ROWS : P::OH;
    constexpr i64 cols = P::POOL != 0 ? Conv<P>::POOL_COLS : P::OW;
    f64 sum = 0.0;
    for (i64 image = first; image < last; ++image) {
        const f32* from = dy + image * P::K * rows * cols;
        for (i64 p = 0; p < rows; ++p)
#pragma unroll 16  // so that as many loads are on their way
            for (i64 q = 0; q < cols; ++q)
                sum += from[offset_of<P::K, rows, cols, P::YROW != 0>(filter, p, q)];
    }
    return f32(sum);
}

template <class P>
__global__ void conv2d_wgrad_fused(const f32* x, const f32* dy, const u8* index, f32* dw, f32* db,
                                   i64 n, i64 images, i64 stride) {
    constexpr i64 WEIGHTS = P::K * Conv<P>::DEPTH, SIZE = WEIGHTS + (P::BIAS != 0 ? P::K : 0);
    const i64 chunk = global_thread() / SIZE, i = global_thread() % SIZE;
    const i64 first = chunk * images, last = least(first + images, n);
    if (chunk > 0 && first >= n) return;
    if (i < WEIGHTS) {
        const Place at = Conv<P>::w_place(i);
        f32 sum;
        if constexpr (P::POOL != 0)
            sum = Conv<P>::pooled_filter_gradient(x, dy, index, at, first, last);
        else
            sum = Conv<P>::filter_gradient(x, DenseGradient<P>{dy}, at, first, last);
        dw[chunk * stride + i] = sum;
    } else {
        db[chunk * stride + i - WEIGHTS] = conv2d_fused_bias<P>(dy, i - WEIGHTS, first, last);
    }
}
