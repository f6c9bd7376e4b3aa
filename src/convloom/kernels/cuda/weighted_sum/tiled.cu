// y = c0 x0 + c1 x1 + …, of COUNT (up to four) inputs, then the rectifier if RELU; all c are 1
// unless SCALED
//
// A thread takes a tile of four neighbours, loaded and stored at once.
// Against naive: a quarter of the memory instructions, and the rectifier costs no pass over memory.
// Limit: 4 * (COUNT + 1) bytes of memory traffic an element.
#include "device/activation.cuh"
#include "device/fours.cuh"
#include "device/index.cuh"
#include "device/sum.cuh"

template <class P>
__global__ void weighted_sum_tiled(const f32* x0, const f32* x1, const f32* x2, const f32* x3,
                                   f32* y, i64 size, f32 c0, f32 c1, f32 c2, f32 c3) {
    const i64 i = 4 * global_thread(), left = size - i;
    if (left <= 0) return;
    const f32 *x[4] = {x0, x1, x2, x3}, c[4] = {c0, c1, c2, c3};
    Four term[P::COUNT], sum;
#pragma unroll
    for (int k = 0; k < P::COUNT; ++k) term[k] = load_four(x[k] + i, left);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
#pragma unroll
        for (int k = 0; k < P::COUNT; ++k)
            sum.at[v] = with_term<P>(sum.at[v], k, c[k], term[k].at[v]);
        if (P::RELU != 0) sum.at[v] = rectified(sum.at[v]);
    }
    store_four(y + i, sum, left);
}
