// First half of the gradient: dx = dy d^-beta and t = dy x d^(-beta-1), d as in response_norm2d
//
// One thread an element of NHWC images.
// Limit: a window of loads an element, mostly from the caches.
#include "device/response.cuh"

template <class P>
__global__ void response_norm2d_parts_naive(const f32* dy, const f32* x, const f32* m, f32* dx,
                                            f32* t, i64 channels, i64 height, i64 width, i64 size,
                                            f32 k, f32 scale, f32 beta) {
    const i64 i = global_thread();
    if (i >= size) return;
    const Response response = {k, scale, beta};
    const f32 sum = pixel_window<P::LOW, P::HIGH>(i, channels, height, width, nullptr,
                                                  [&](i64 at) { return m[at] * m[at]; });
    const f32 d = response.denominator(sum), passed = dy[i] * response.factor(d);
    dx[i] = passed;
    t[i] = passed * x[i] / d;
}
