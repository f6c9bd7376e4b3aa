// m = x minus the mean of the window around it, over the part inside the map. NHWC
//
// One thread an element.
// Limit: a window of loads an element, mostly from the caches.
#include "device/response.cuh"

template <class P>
__global__ void contrast_naive(const f32* x, f32* m, i64 channels, i64 height, i64 width,
                               i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    i64 cells;
    const f32 sum = pixel_window<P::LOW, P::HIGH>(i, channels, height, width, &cells,
                                                  [&](i64 at) { return x[at]; });
    m[i] = x[i] - sum / f32(cells);
}
