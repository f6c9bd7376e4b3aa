// Sums over the threads of a block, in an order that never changes.
#pragma once

#include "device/types.cuh"

// The sum of `value` over a warp, on every lane: halves are added to halves.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// The sum of `value` over the lanes that differ in the bits FROM to TO of their numbers, on each.
template <int FROM, int TO, class T>
__device__ __forceinline__ T lanes_sum(T value) {
#pragma unroll
    for (int distance = TO; distance >= FROM; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// `value` of LANES neighbouring lanes, a power of two, combined two by two, on each. Each step takes
// in four lanes at once, if as many are left, so that half as many wait for the one before.
template <int LANES, class T, class Combine>
__device__ __forceinline__ T lanes_combined(T value, const Combine& combine) {
#pragma unroll
    for (int bit = 1; bit < LANES; bit *= 4) {
        const T next = __shfl_xor_sync(0xffffffffu, value, bit);
        if (2 * bit < LANES) {
            const T third = __shfl_xor_sync(0xffffffffu, value, 2 * bit);
            const T fourth = __shfl_xor_sync(0xffffffffu, value, 3 * bit);
            value = combine(combine(value, next), combine(third, fourth));
        } else {
            value = combine(value, next);
        }
    }
    return value;
}

// The lanes that share a row of `count` elements: a power of two up to 32.
__host__ __device__ constexpr int row_lanes(long long count) {
    int lanes = 1;
    while (lanes < count && lanes < 32) lanes *= 2;
    return lanes;
}

// The sum of `value` over a block of THREADS threads, on thread 0. All threads must call it.
template <int THREADS, class T>
__device__ __forceinline__ T block_sum(T value) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024);
    __shared__ T part[THREADS / 32];
    value = warp_sum(value);
    if constexpr (THREADS == 32) return value;
    __syncthreads();  // an earlier sum may still be read
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < THREADS / 32; ++warp) value += part[warp];
    return value;
}
