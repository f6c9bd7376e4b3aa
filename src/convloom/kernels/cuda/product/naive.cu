// y = a * b, element by element
//
// One thread an element. Limit: 12 bytes of memory traffic an element.
#include "device/index.cuh"

template <class P>
__global__ void product_naive(const f32* a, const f32* b, f32* y, i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    y[i] = a[i] * b[i];
}
