// dx[n,i] = sum over o of dy[n,o] * w[o,i], behind the activation that made a (MASK)
//
// One thread an input. dy is (n, O), w (O, I), a (n, I), all row-major.
// Against naive: the rectifier's mask costs one load, not a pass over memory.
// Limit: as naive.
#include "device/activation.cuh"
#include "device/index.cuh"

template <class P>
__global__ void linear_dgrad_fused(const f32* dy, const f32* w, const f32* a, f32* dx, i64 n) {
    const i64 at = global_thread();
    if (at >= n * P::I) return;
    const f32 *row = dy + at / P::I * P::O, *weights = w + at % P::I;
    f32 sum = 0.0f;
    for (i64 o = 0; o < P::O; ++o) sum = fmaf(row[o], weights[o * P::I], sum);
    dx[at] = P::MASK != 0 ? gated<P>(sum, a[at]) : sum;
}
