// Barriers that not all threads reach together. One block of 64 threads.
enum { SITES, RETURNED, COUNTS, WARP_AND_BLOCK, ENDLESS, SPINNING };

template <class P>
__global__ void faults_barriers(const float* x, float* y, long long n) {
    const int i = threadIdx.x;
    if constexpr (P::CASE == SITES) {
        if (i < 32) {
            __syncthreads();
        } else {
            y[0] = 1.0f;
            __syncthreads();
        }
    }
    if constexpr (P::CASE == RETURNED) {
        if (i >= n) return;
        __syncthreads();
    }
    if constexpr (P::CASE == COUNTS)
        for (int turn = 0; turn < (i < 32 ? 3 : 4); ++turn) __syncthreads();
    if constexpr (P::CASE == WARP_AND_BLOCK) {
        if (i % 32 < 16)
            __syncwarp();
        else
            __syncthreads();
    }
    if constexpr (P::CASE == ENDLESS)
        while (*(volatile const float*)x >= 0.0f) __syncthreads();
    if constexpr (P::CASE == SPINNING)
        while (*(volatile const float*)x >= 0.0f) {
        }
    y[i] = 1.0f;
}
