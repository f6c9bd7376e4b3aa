// y = x, 16 bytes at a time: what the memory of the device can move at most
//
// P::EACH elements a thread, a grid apart, so that each warp asks for whole lines and several loads
// are on their way at once. Limit: 32 bytes of memory traffic an element.
#include "device/index.cuh"

struct alignas(16) Quad {
    u32 word[4];
};

template <class P>
__global__ void peak_copy_naive(const Quad* x, Quad* y, i64 size) {
    constexpr i32 EACH = i32(P::EACH);
    const i64 first = global_thread(), apart = i64(gridDim.x) * blockDim.x;
    Quad held[EACH];
#pragma unroll
    for (i32 k = 0; k < EACH; ++k)
        if (first + k * apart < size) held[k] = x[first + k * apart];
#pragma unroll
    for (i32 k = 0; k < EACH; ++k)
        if (first + k * apart < size) y[first + k * apart] = held[k];
}
