// y = greatest element of each window, index (with INDEX) = its h * W + w in the input plane
//
// One thread a window, in the memory order of y. The first of equal elements in scan order wins;
// NaN beats every number and the last NaN wins, as in torch.nn.MaxPool2d. With MAGNITUDE the greatest
// magnitude wins, the last of equal ones.
// Limit: memory; windows that overlap are served by the caches.
#include "device/pool.cuh"

template <class P>
__global__ void max_pool_naive(const f32* x, f32* y, i32* index, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Pool<P>::Y_SIZE) return;
    f32 best = 0.0f;
    i32 winner = -1;
    Pool<P>::cells(Pool<P>::y_place(i), [&](i64 from, i64 cell) {
        const f32 value = x[from];
        if (winner < 0 || prevails<P>(value, best)) best = value, winner = i32(cell);
    });
    y[i] = best;
    if constexpr (P::INDEX != 0) index[i] = winner;
}
