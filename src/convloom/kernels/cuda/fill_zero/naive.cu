// target = 0, for 4-byte elements
//
// One thread an element. Limit: 4 bytes of memory traffic an element.
#include "device/index.cuh"

template <class P>
__global__ void fill_zero_naive(u32* target, i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    target[i] = 0;
}
