// dx = the slope of the loss KIND at x and its target t, times dloss / divisor
//
// One thread an element. t is x where the loss has no target.
// Limit: 12 bytes of memory traffic an element.
#include "device/index.cuh"
#include "device/pointwise_loss.cuh"

template <class P>
__global__ void pointwise_loss_grad_naive(const f32* x, const f32* t, const f32* dloss, f32* dx,
                                          i64 size, f32 a, f32 divisor) {
    const i64 i = global_thread();
    if (i >= size) return;
    dx[i] = loss_slope<P::KIND>(x[i], t[i], a) * (*dloss / divisor);
}
