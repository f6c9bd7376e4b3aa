// y = greatest element of each window, index = its h * W + w in the input plane
//
// One thread a window, in the memory order of y. The first of equal elements in scan order wins;
// NaN beats every number and the last NaN wins, as in torch.nn.MaxPool2d.
// Limit: memory; windows that overlap are served by the caches.
#include "device/pool.cuh"

template <class P>
__global__ void max_pool_naive(const f32* x, f32* y, i32* index, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Pool<P>::Y_SIZE) return;
    const Place at = Pool<P>::y_place(i);
    f32 best = 0.0f;
    i64 winner = -1;
    for (i64 r = 0; r < P::KH; ++r) {
        const i64 row = at.row * P::UH + r * P::DH - P::PH;
        if (row < 0 || row >= P::H) continue;
        for (i64 s = 0; s < P::KW; ++s) {
            const i64 col = at.col * P::UW + s * P::DW - P::PW;
            if (col < 0 || col >= P::W) continue;
            const f32 value = x[Pool<P>::x_offset(at.image, at.channel, row, col)];
            if (winner < 0 || replaces(value, best)) {
                best = value;
                winner = row * P::W + col;
            }
        }
    }
    y[i] = best;
    index[i] = i32(winner);
}
