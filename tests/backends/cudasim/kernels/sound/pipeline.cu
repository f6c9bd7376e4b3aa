// y = each tile of x reversed: tiles come by cp.async, the next while this one is written
#include "device/ptx.cuh"

template <class P>
__global__ void sound_pipeline(const float* x, float* y, long long tiles) {
    extern __shared__ __align__(128) unsigned char smem_raw[];
    float* shared = reinterpret_cast<float*>(smem_raw);
    constexpr int TILE = 4 * P::THREADS;
    const int first = 4 * threadIdx.x;

    const auto fetch = [&](long long tile) {
        const bool inside = tile < tiles;
        float* target = shared + tile % 2 * TILE;
        cp_async_16_zfill(target + first, inside ? x + tile * TILE + first : x, inside);
        cp_async_commit();
    };
    fetch(0);
    for (long long tile = 0; tile < tiles; ++tile) {
        fetch(tile + 1);
        cp_async_wait<1>();
        __syncthreads();
        const float* source = shared + tile % 2 * TILE;
        for (int i = 0; i < 4; ++i) y[tile * TILE + first + i] = source[TILE - 1 - first - i];
        __syncthreads();
    }
    cp_async_wait<0>();
}
