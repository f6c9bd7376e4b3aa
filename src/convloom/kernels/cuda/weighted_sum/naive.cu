// y = c0 x0 + c1 x1 + …, of COUNT (up to four) inputs; all c are 1 unless SCALED
//
// One thread an element. Terms are added in their order. Limit: 4 * (COUNT + 1) bytes of memory
// traffic an element.
#include "device/index.cuh"
#include "device/sum.cuh"

template <class P>
__global__ void weighted_sum_naive(const f32* x0, const f32* x1, const f32* x2, const f32* x3,
                                   f32* y, i64 size, f32 c0, f32 c1, f32 c2, f32 c3) {
    const i64 i = global_thread();
    if (i >= size) return;
    const f32 *x[4] = {x0, x1, x2, x3}, c[4] = {c0, c1, c2, c3};
    f32 sum = 0.0f;
#pragma unroll
    for (int k = 0; k < P::COUNT; ++k) sum = with_term<P>(sum, k, c[k], x[k][i]);
    y[i] = sum;
}
