// y[n,o] = b[o] + sum over i of x[n,i] * w[o,i], then the activation (ACT)
//
// One thread an output. x is (n, I), w (O, I), both row-major.
// Against naive: the activation costs no pass over memory.
// Limit: as naive.
#include "device/activation.cuh"
#include "device/index.cuh"

template <class P>
__global__ void linear_fprop_fused(const f32* x, const f32* w, const f32* bias, f32* y, i64 n) {
    const i64 at = global_thread();
    if (at >= n * P::O) return;
    const i64 o = at % P::O;
    const f32 *row = x + at / P::O * P::I, *weights = w + o * P::I;
    f32 sum = 0.0f;
#pragma unroll 8  // so that as many loads are on their way
    for (i64 i = 0; i < P::I; ++i) sum = fmaf(row[i], weights[i], sum);
    if (P::BIAS != 0) sum += bias[o];
    y[at] = activated<P>(sum);
}
