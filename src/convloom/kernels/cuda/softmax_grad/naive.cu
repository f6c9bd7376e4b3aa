// dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) with LOG: softmax's gradient along an axis of K
//
// The tensor is (outer, K, inner) in memory. One thread an (outer, inner): two walks over its K
// elements, which lie `inner` apart.
// Limit: 20 bytes of loads and stores an element, from caches if they hold it.
#include "device/functions.cuh"
#include "device/index.cuh"

template <class P>
__global__ void softmax_grad_naive(const f32* dy, const f32* y, f32* dx, i64 rows, i64 k_count,
                                   i64 inner) {
    const i64 row = global_thread();
    if (row >= rows) return;
    const i64 first = row / inner * k_count * inner + row % inner;
    f32 sum = 0.0f;
    for (i64 k = 0; k < k_count; ++k) {
        const i64 at = first + k * inner;
        sum = P::LOG != 0 ? sum + dy[at] : fmaf(dy[at], y[at], sum);
    }
    for (i64 k = 0; k < k_count; ++k) {
        const i64 at = first + k * inner;
        dx[at] = P::LOG != 0 ? dy[at] - exponential(y[at]) * sum : y[at] * (dy[at] - sum);
    }
}
