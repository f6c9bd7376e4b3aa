// first[i] = sum over chunks of partial[chunk][i], second[i] = that of partial[chunk][FIRST + i]
//
// One thread an output; a chunk holds FIRST + SECOND partial sums, which are added in order.
// Limit: 4 bytes of memory traffic a partial sum.
#include "device/index.cuh"

template <class P>
__global__ void sum_partials_naive(const f32* partial, f32* first, f32* second, i64 chunks) {
    constexpr i64 SIZE = P::FIRST + P::SECOND;
    const i64 i = global_thread();
    if (i >= SIZE) return;
    f32 sum = 0.0f;
    for (i64 chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * SIZE + i];
    if (i < P::FIRST)
        first[i] = sum;
    else
        second[i - P::FIRST] = sum;
}
