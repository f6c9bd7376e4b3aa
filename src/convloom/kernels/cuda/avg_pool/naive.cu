// y = mean of each window
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
    for (i64 r = 0; r < P::KH; ++r) {
        const i64 row = at.row * P::UH + r - P::PH;
        if (row < 0 || row >= P::H) continue;
        for (i64 s = 0; s < P::KW; ++s) {
            const i64 col = at.col * P::UW + s - P::PW;
            if (col < 0 || col >= P::W) continue;
            sum += x[Pool<P>::x_offset(at.image, at.channel, row, col)];
        }
    }
    y[i] = sum / averaged_cells<P>(at.row, at.col);
}
