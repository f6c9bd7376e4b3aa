// y = 0 where x <= 0, else x
//
// One thread an element. Limit: 8 bytes of memory traffic an element.
#include "device/activation.cuh"
#include "device/index.cuh"

template <class P>
__global__ void relu_naive(const f32* x, f32* y, i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    y[i] = rectified(x[i]);
}
