// dx[h,w] = sum over the windows that hold (h, w) of dy / cells of the window
//
// One thread an input, in the memory order of dx: it gathers, so nothing is added by two threads.
// Limit: memory; a division a tap.
#include "device/pool.cuh"

template <class P>
__global__ void avg_pool_grad_naive(const f32* dy, f32* dx, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Pool<P>::X_SIZE) return;
    const Place at = Pool<P>::x_place(i);
    f32 sum = 0.0f;
    for (i64 r = 0; r < P::KH; ++r) {
        const i64 row = at.row + P::PH - r;
        if (row < 0 || row % P::UH != 0 || row / P::UH >= P::OH) continue;
        for (i64 s = 0; s < P::KW; ++s) {
            const i64 col = at.col + P::PW - s;
            if (col < 0 || col % P::UW != 0 || col / P::UW >= P::OW) continue;
            const i64 p = row / P::UH, q = col / P::UW;
            sum += dy[Pool<P>::y_offset(at.image, at.channel, p, q)] / averaged_cells<P>(p, q);
        }
    }
    dx[i] = sum;
}
