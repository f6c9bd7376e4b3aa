// Shared memory used too early, too far, or by two at once. One block of 64 threads, n = 1.
#include "device/ptx.cuh"

enum { CLEAN, CLEAN_WARP, UNWRITTEN, READ_TOO_EARLY, OVERWRITTEN, NOT_WAITED, WAITED_ALONE };
enum { BEYOND = 10, BEFORE, BEYOND_STATIC, BEYOND_POINTER };

template <class P>
__global__ void faults_shared(const float* x, float* y, long long n) {
    extern __shared__ __align__(128) unsigned char smem_raw[];
    float* dynamic = reinterpret_cast<float*>(smem_raw);
    __shared__ __align__(16) float tile[64];
    __shared__ float other[64];
    const int i = threadIdx.x;
    if constexpr (P::CASE == CLEAN) {
        tile[i] = x[i];
        __syncthreads();
        y[i] = tile[63 - i];
    }
    if constexpr (P::CASE == CLEAN_WARP) {
        tile[i] = x[i];
        __syncwarp();
        y[i] = tile[i ^ 31];
    }
    if constexpr (P::CASE == UNWRITTEN) {
        if (i != 5) tile[i] = x[i];
        __syncthreads();
        y[i] = tile[i];
    }
    if constexpr (P::CASE == READ_TOO_EARLY) {
        tile[i] = x[i];
        y[i] = tile[63 - i];
    }
    if constexpr (P::CASE == OVERWRITTEN) {
        tile[i] = x[i];
        __syncthreads();
        const float value = tile[63 - i];
        tile[i] = -value;
        y[i] = value;
    }
    if constexpr (P::CASE == NOT_WAITED || P::CASE == WAITED_ALONE) {
        if (i < 16) cp_async_16(tile + 4 * i, x + 4 * i);
        cp_async_commit();
        if constexpr (P::CASE == WAITED_ALONE) cp_async_wait<0>();
        if constexpr (P::CASE == NOT_WAITED) __syncthreads();
        y[i] = tile[63 - i];
    }
    if constexpr (P::CASE == BEYOND || P::CASE == BEFORE) {
        dynamic[i] = x[i];
        __syncthreads();
        y[i] = dynamic[P::CASE == BEYOND ? i + n : i - n];
    }
    if constexpr (P::CASE == BEYOND_STATIC || P::CASE == BEYOND_POINTER) {
        tile[i] = x[i];
        other[i] = 2.0f;
        __syncthreads();
        const float* place = P::CASE == BEYOND_STATIC ? &tile[i + n] : tile + i + n;
        y[i] = *place + other[i];
    }
}
