// dx = dy times the slope of the function KIND at v, the activation's x or y
//
// One thread an element. Limit: 12 bytes of memory traffic an element.
#include "device/activation.cuh"
#include "device/index.cuh"

template <class P>
__global__ void activation_grad_naive(const f32* dy, const f32* v, f32* dx, i64 size, f32 a,
                                      f32 b) {
    const i64 i = global_thread();
    if (i >= size) return;
    dx[i] = activation_gradient<P::KIND>(dy[i], v[i], a, b);
}
