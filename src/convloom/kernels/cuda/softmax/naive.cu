// y = exp(x - max x) / sum exp(x - max x), or its logarithm (LOG), along one axis of K
//
// The tensor is (outer, K, inner) in memory. One thread an (outer, inner): three walks over its K
// elements, which lie `inner` apart; so neighbouring threads read neighbours where inner is more
// than 1. The sum is float64.
// Limit: 12 bytes of loads an element, from caches if they hold it; where inner is 1, each by itself.
#include "device/functions.cuh"
#include "device/index.cuh"
#include "device/loss.cuh"

template <class P>
__global__ void softmax_naive(const f32* x, f32* y, i64 rows, i64 k_count, i64 inner) {
    const i64 row = global_thread();
    if (row >= rows) return;
    const i64 first = row / inner * k_count * inner + row % inner;
    f32 top = x[first];
    for (i64 k = 1; k < k_count; ++k) top = greater_or_nan(top, x[first + k * inner]);
    f64 sum = 0.0;
    for (i64 k = 0; k < k_count; ++k) sum += f64(exponential(x[first + k * inner] - top));
    const f32 share = f32(1.0 / sum), log_sum = P::LOG != 0 ? f32(log(sum)) : 0.0f;
    for (i64 k = 0; k < k_count; ++k) {
        const f32 shifted = x[first + k * inner] - top;
        y[first + k * inner] = P::LOG != 0 ? shifted - log_sum : exponential(shifted) * share;
    }
}
