// dx = 0, then dx[index] += dy for every window, in scan order
//
// One thread a plane (one channel of one image), so no two threads meet and sums have one order.
// CELLS is the size of an input plane, WINDOWS of an output plane; XROW, YROW: 1 for NCHW.
// Limit: N*C threads; a chain of dependent reads and writes in each.
#include "device/index.cuh"

template <class P>
__global__ void max_pool_grad_naive(const f32* dy, const i32* index, f32* dx, i64 n) {
    const i64 plane = global_thread();
    if (plane >= n * P::C) return;
    const i64 image = plane / P::C, channel = plane % P::C;
    const auto x_at = [&](i64 cell) {
        return image * P::C * P::CELLS +
               offset_of<P::C, 1, P::CELLS, P::XROW != 0>(channel, 0, cell);
    };
    for (i64 cell = 0; cell < P::CELLS; ++cell) dx[x_at(cell)] = 0.0f;
    for (i64 window = 0; window < P::WINDOWS; ++window) {
        const i64 from = image * P::C * P::WINDOWS +
                         offset_of<P::C, 1, P::WINDOWS, P::YROW != 0>(channel, 0, window);
        dx[x_at(index[from])] += dy[from];
    }
}
