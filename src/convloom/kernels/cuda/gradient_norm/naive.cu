// partial[i] = sum of g[j]^2 over the i-th CHUNK elements, in float64
//
// One thread a chunk of one gradient; a launch for each gradient. gradient_norm_root adds them up.
// Limit: CHUNK dependent additions; neighbouring threads read CHUNK elements apart.
#include "device/index.cuh"

template <class P>
__global__ void gradient_norm_naive(const f32* g, f64* partial, i64 size) {
    const i64 chunk = global_thread();
    if (chunk * P::CHUNK >= size) return;
    const i64 last = least((chunk + 1) * P::CHUNK, size);
    f64 sum = 0.0;
    for (i64 i = chunk * P::CHUNK; i < last; ++i) sum += f64(g[i]) * f64(g[i]);
    partial[chunk] = sum;
}
