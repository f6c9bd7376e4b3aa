// norm = square root of the sum of `count` float64 partial sums, added in order
//
// One thread. Limit: one addition after the other.
#include "device/index.cuh"

template <class P>
__global__ void gradient_norm_root_naive(const f64* partial, f64* norm, i64 count) {
    if (global_thread() != 0) return;
    f64 total = 0.0;
    for (i64 i = 0; i < count; ++i) total += partial[i];
    *norm = sqrt(total);
}
