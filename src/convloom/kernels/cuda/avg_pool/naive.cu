// y = sum of each window's cells / cells counted (or DIVISOR, where that is not 0)
//
// One thread a window, in the memory order of y.
// Limit: memory; windows that overlap are served by the caches.
#include "device/pool.cuh"

template <class P>
__global__ void avg_pool_naive(const f32* x, f32* y, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Pool<P>::Y_SIZE) return;
    const Place at = Pool<P>::y_place(i);
    f32 sum = 0.0f;
    Pool<P>::cells(at, [&](i64 from, i64) { sum += x[from]; });
    y[i] = sum / Pool<P>::divisor(at.row, at.col);
}
