// Global and local memory, and arithmetic without a result. One block of 64 threads, n = 1.
enum { BEYOND, NOT_MINE, LOCAL, MISALIGNED, OVERFLOW, DIVISION, WILD, TOGETHER, DEEP };

template <class P>
__global__ void faults_memory(const float* x, float* y, long long n) {
    const int i = threadIdx.x;
    if constexpr (P::CASE == BEYOND) y[i] = x[i + n];
    if constexpr (P::CASE == NOT_MINE) y[i + 64 * 64] = x[i];
    if constexpr (P::CASE == LOCAL) {
        float local[4];
        for (int k = 0; k < 4; ++k) local[k] = float(i + k);
        y[i] = local[(n + 4) & 7];
    }
    if constexpr (P::CASE == MISALIGNED)
        y[i] = reinterpret_cast<const float4*>(x + n)->x;
    if constexpr (P::CASE == OVERFLOW) {
        const int large = int(n) << 30;
        y[i] = float(large + large);
    }
    if constexpr (P::CASE == DIVISION) y[i] = float(i / int(n - 1));
    if constexpr (P::CASE == WILD) *reinterpret_cast<float*>(n * 8) = x[i];
    if constexpr (P::CASE == TOGETHER) y[0] = x[i];
    if constexpr (P::CASE == DEEP) {
        volatile float deep[1 << 16];
        for (int k = (1 << 16) - 1; k >= 0; k -= 256) deep[k] = x[i];
        y[i] = deep[255];
    }
}
