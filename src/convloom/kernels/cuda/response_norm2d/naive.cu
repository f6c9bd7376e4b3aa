// y = x (k + scale * (sum of m^2 over neighbouring pixels))^-beta; m is x, or its contrast. NHWC
//
// One thread an element.
// Limit: a window of loads an element, mostly from the caches.
#include "device/response.cuh"

template <class P>
__global__ void response_norm2d_naive(const f32* x, const f32* m, f32* y, i64 channels, i64 height,
                                      i64 width, i64 size, f32 k, f32 scale, f32 beta) {
    const i64 i = global_thread();
    if (i >= size) return;
    const Response response = {k, scale, beta};
    const f32 sum = pixel_window<P::LOW, P::HIGH>(i, channels, height, width, nullptr,
                                                  [&](i64 at) { return m[at] * m[at]; });
    y[i] = x[i] * response.factor(response.denominator(sum));
}
