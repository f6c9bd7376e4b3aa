// dx[n,i] = sum over o of dy[n,o] * w[o,i]
//
// One thread an input. dy is (n, O), w (O, I), both row-major.
// Limit: 2*O FLOPs an input; neighbouring threads read neighbouring weights.
#include "device/index.cuh"

template <class P>
__global__ void linear_dgrad_naive(const f32* dy, const f32* w, f32* dx, i64 n) {
    const i64 at = global_thread();
    if (at >= n * P::I) return;
    const f32 *row = dy + at / P::I * P::O, *weights = w + at % P::I;
    f32 sum = 0.0f;
    for (i64 o = 0; o < P::O; ++o) sum = fmaf(row[o], weights[o * P::I], sum);
    dx[at] = sum;
}
