// dx = sum over the windows that hold the input of dy / cells counted (or DIVISOR)
//
// One thread an input, in the memory order of dx: it gathers, so nothing is added by two threads.
// Limit: memory; a division a window.
#include "device/pool.cuh"

template <class P>
__global__ void avg_pool_grad_naive(const f32* dy, f32* dx, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Pool<P>::X_SIZE) return;
    f32 sum = 0.0f;
    Pool<P>::windows(Pool<P>::x_place(i), [&](i64 from, i64 p, i64 q) {
        sum += dy[from] / Pool<P>::divisor(p, q);
    });
    dx[i] = sum;
}
