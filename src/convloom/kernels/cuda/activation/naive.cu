// y = the function KIND of x, with parameters a and b
//
// One thread an element. Limit: 8 bytes of memory traffic an element.
#include "device/activation.cuh"
#include "device/index.cuh"

template <class P>
__global__ void activation_naive(const f32* x, f32* y, i64 size, f32 a, f32 b) {
    const i64 i = global_thread();
    if (i >= size) return;
    y[i] = activate<P::KIND>(x[i], a, b);
}
