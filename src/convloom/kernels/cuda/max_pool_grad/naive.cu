// dx = sum of dy over the windows that the input won; with TIES over those whose maximum it equals
//
// One thread an input, in the memory order of dx: it gathers from the few windows that hold it, in
// scan order, so nothing is added by two threads. `index` is there without TIES, x and y with.
// Limit: memory; indices of 64 bits.
#include "device/pool.cuh"

template <class P>
__global__ void max_pool_grad_naive(const f32* dy, const i32* index, const f32* x, const f32* y,
                                    f32* dx, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Pool<P>::X_SIZE) return;
    const Place at = Pool<P>::x_place(i);
    const i32 here = i32(at.row * P::W + at.col);
    f32 sum = 0.0f;
    Pool<P>::windows(at, [&](i64 from, i64, i64) {
        const bool won = P::TIES != 0 ? ties(x[i], y[from]) : index[from] == here;
        if (won) sum += dy[from];
    });
    dx[i] = sum;
}
