// Second half of the gradient: dx -= factor m (sum of t over the windows that hold the pixel). NHWC
//
// One thread an element.
// Limit: a window of loads an element, mostly from the caches.
#include "device/response.cuh"

template <class P>
__global__ void response_norm2d_gather_naive(const f32* m, const f32* t, f32* dx, i64 channels,
                                             i64 height, i64 width, i64 size, f32 factor) {
    const i64 i = global_thread();
    if (i >= size) return;
    const f32 sum = pixel_window<P::HIGH, P::LOW>(i, channels, height, width, nullptr,
                                                  [&](i64 at) { return t[at]; });
    dx[i] -= factor * m[i] * sum;
}
