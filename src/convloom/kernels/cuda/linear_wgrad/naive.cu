// dw[o,i] = sum over n of dy[n,o] * x[n,i]
//
// One thread a weight; it walks the whole batch. x is (n, I), dy (n, O), both row-major.
// Limit: 2*N FLOPs a weight; neighbouring threads read neighbouring inputs.
#include "device/index.cuh"

template <class P>
__global__ void linear_wgrad_naive(const f32* x, const f32* dy, f32* dw, i64 n) {
    const i64 at = global_thread();
    if (at >= P::O * P::I) return;
    const i64 o = at / P::I, i = at % P::I;
    f32 sum = 0.0f;
    for (i64 sample = 0; sample < n; ++sample)
        sum = fmaf(dy[sample * P::O + o], x[sample * P::I + i], sum);
    dw[at] = sum;
}
