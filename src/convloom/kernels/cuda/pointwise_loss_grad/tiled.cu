// dx = the slope of the loss KIND at x and its target t, times dloss / divisor
//
// A thread takes a tile of four neighbours, loaded and stored at once. t is x where the loss has no
// target.
// Against naive: a quarter of the memory instructions, and one division for four elements.
// Limit: 12 bytes of memory traffic an element.
#include "device/fours.cuh"
#include "device/index.cuh"
#include "device/pointwise_loss.cuh"

template <class P>
__global__ void pointwise_loss_grad_tiled(const f32* x, const f32* t, const f32* dloss, f32* dx,
                                          i64 size, f32 a, f32 divisor) {
    const i64 i = 4 * global_thread(), left = size - i;
    if (left <= 0) return;
    Four four = load_four(x + i, left);
    const Four aim = load_four(t + i, left);
    const f32 scale = *dloss / divisor;
#pragma unroll
    for (int v = 0; v < 4; ++v)
        four.at[v] = loss_slope<P::KIND>(four.at[v], aim.at[v], a) * scale;
    store_four(dx + i, four, left);
}
