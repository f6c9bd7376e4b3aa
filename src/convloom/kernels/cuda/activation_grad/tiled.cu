// dx = dy times the slope of the function KIND at v, the activation's x or y
//
// A thread takes a tile of four neighbours, loaded and stored at once.
// Against naive: a quarter of the memory instructions, and four independent slopes a thread.
// Limit: 12 bytes of memory traffic an element.
#include "device/activation.cuh"
#include "device/fours.cuh"
#include "device/index.cuh"

template <class P>
__global__ void activation_grad_tiled(const f32* dy, const f32* v, f32* dx, i64 size, f32 a,
                                      f32 b) {
    const i64 i = 4 * global_thread(), left = size - i;
    if (left <= 0) return;
    Four four = load_four(dy + i, left);
    const Four kept = load_four(v + i, left);
#pragma unroll
    for (int k = 0; k < 4; ++k)
        four.at[k] = activation_gradient<P::KIND>(four.at[k], kept.at[k], a, b);
    store_four(dx + i, four, left);
}
