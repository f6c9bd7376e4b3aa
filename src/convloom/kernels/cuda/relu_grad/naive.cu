// dx = 0 where y <= 0, else dy
//
// One thread an element. Limit: 12 bytes of memory traffic an element.
#include "device/activation.cuh"
#include "device/index.cuh"

template <class P>
__global__ void relu_grad_naive(const f32* dy, const f32* y, f32* dx, i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    dx[i] = masked(dy[i], y[i]);
}
