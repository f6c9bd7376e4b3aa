// dw[o,i] = sum over n of dy[n,o] * x[n,i], db[o] = sum over n of dy[n,o]
//
// One thread a weight, then one a bias; each walks the whole batch. x is (n, I), dy (n, O).
// Against naive: one launch for two gradients.
// Limit: as naive.
#include "device/index.cuh"

template <class P>
__global__ void linear_wgrad_fused(const f32* x, const f32* dy, f32* dw, f32* db, i64 n) {
    constexpr i64 weights = P::O * P::I;
    const i64 at = global_thread();
    f32 sum = 0.0f;
    if (at < weights) {
        const i64 o = at / P::I, i = at % P::I;
        for (i64 sample = 0; sample < n; ++sample)
            sum = fmaf(dy[sample * P::O + o], x[sample * P::I + i], sum);
        dw[at] = sum;
    } else if (at - weights < P::O) {
        const i64 o = at - weights;
        for (i64 sample = 0; sample < n; ++sample) sum += dy[sample * P::O + o];
        db[o] = sum;
    }
}
