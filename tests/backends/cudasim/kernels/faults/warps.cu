// Lanes that do not agree. One block of 64 threads.
#include "device/ptx.cuh"

enum { ABSENT, NOT_IN_MASK, BAD_SOURCE, MIXED, MASKS, MISALIGNED, OUTSIDE, MATRIX_HALF };

template <class P>
__global__ void faults_warps(const float* x, float* y, long long n) {
    const unsigned full = 0xffffffffu;
    const int i = threadIdx.x, lane = i % 32;
    __shared__ __align__(128) float tile[256];
    for (int k = 0; k < 4; ++k) tile[i * 4 + k] = x[i];
    __syncthreads();
    unsigned r[1] = {};
    float got = 0.0f;
    if constexpr (P::CASE == ABSENT) {
        if (lane < 16) got = __shfl_down_sync(full, x[i], 1);
        __syncthreads();
    }
    if constexpr (P::CASE == NOT_IN_MASK) got = __shfl_sync(0xffffu, x[i], 0);
    if constexpr (P::CASE == BAD_SOURCE)
        if (lane < 16) got = __shfl_sync(0xffffu, x[i], 20);
    if constexpr (P::CASE == MIXED)
        got = lane % 2 ? __shfl_sync(full, x[i], 0) : float(__ballot_sync(full, 1));
    if constexpr (P::CASE == MASKS) got = __shfl_sync(lane < 16 ? full : 0xffff0000u, x[i], 20);
    if constexpr (P::CASE == MISALIGNED) ldmatrix_x1(r, tile + 2);
    if constexpr (P::CASE == OUTSIDE) ldmatrix_x1(r, x);
    if constexpr (P::CASE == MATRIX_HALF)
        if (lane < 16) ldmatrix_x1(r, tile);
    y[i] = got + float(r[0]);
}
