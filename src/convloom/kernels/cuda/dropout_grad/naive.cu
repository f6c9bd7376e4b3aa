// dx = dy * (mask * scale)
//
// One thread an element. Limit: 9 bytes of memory traffic an element.
#include "device/index.cuh"

template <class P>
__global__ void dropout_grad_naive(const f32* dy, const u8* mask, f32* dx, i64 size, f32 scale) {
    const i64 i = global_thread();
    if (i >= size) return;
    dx[i] = dy[i] * (f32(mask[i]) * scale);
}
