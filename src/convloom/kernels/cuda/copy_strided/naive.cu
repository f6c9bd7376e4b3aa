// target[n,a,b,c] = source[n,a,b,c]: concatenation, slices, and changes of memory order
//
// One thread an element. The extents (A, B, C) of a sample are listed in the order of the target's
// memory, so that neighbouring threads write neighbouring elements; FROM_* and TO_* are the
// distances between elements, samples (N), and along each extent.
// Limit: 8 bytes of memory traffic an element, more where the source's order differs.
#include "device/index.cuh"

template <class P>
__global__ void copy_strided_naive(const f32* source, f32* target, i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    const i64 c = i % P::C, b = i / P::C % P::B, a = i / (P::C * P::B) % P::A;
    const i64 n = i / (P::C * P::B * P::A);
    target[n * P::TO_N + a * P::TO_A + b * P::TO_B + c * P::TO_C] =
        source[n * P::FROM_N + a * P::FROM_A + b * P::FROM_B + c * P::FROM_C];
}
