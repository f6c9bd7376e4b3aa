// mean = (sum of `count` float64 partial sums, in order) / n, rounded once to float32
//
// One thread. n = 0 gives NaN. Limit: one addition after the other.
#include "device/index.cuh"

template <class P>
__global__ void mean_of_partials_naive(const f64* partial, f32* mean, i64 count, i64 n) {
    if (global_thread() != 0) return;
    f64 total = 0.0;
    for (i64 i = 0; i < count; ++i) total += partial[i];
    *mean = f32(total / f64(n));
}
