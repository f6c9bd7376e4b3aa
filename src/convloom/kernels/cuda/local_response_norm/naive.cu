// y = x (k + scale * (sum of squares over neighbouring channels))^-beta
//
// One thread an element.
// Limit: a window of loads an element, mostly from the first-level cache.
#include "device/response.cuh"

template <class P>
__global__ void local_response_norm_naive(const f32* x, f32* y, i64 channels, i64 size, f32 k,
                                          f32 scale, f32 beta) {
    const i64 i = global_thread();
    if (i >= size) return;
    const Response response = {k, scale, beta};
    const i64 c = i % channels;
    const f32* pixel = x + i - c;
    const f32 sum = channel_window<P::LOW, P::HIGH, P::BLOCK>(
        c, channels, [&](i64 at) { return pixel[at] * pixel[at]; });
    y[i] = x[i] * response.factor(response.denominator(sum));
}
