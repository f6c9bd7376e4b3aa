// dx = dy d^-beta - factor x (sum of t over the windows that hold x's channel), t = dy x d^(-beta-1)
//
// One thread an element; it computes d again for every channel of its window.
// Limit: a window of windows an element.
#include "device/response.cuh"

template <class P>
__global__ void local_response_norm_grad_naive(const f32* dy, const f32* x, f32* dx, i64 channels,
                                               i64 size, f32 k, f32 scale, f32 beta, f32 factor) {
    const i64 i = global_thread();
    if (i >= size) return;
    const Response response = {k, scale, beta};
    const i64 c = i % channels, pixel = i - c;
    const auto denominator = [&](i64 channel) {
        return response.denominator(channel_window<P::LOW, P::HIGH, P::BLOCK>(
            channel, channels, [&](i64 at) { return x[pixel + at] * x[pixel + at]; }));
    };
    const f32 sum = channel_window<P::HIGH, P::LOW, P::BLOCK>(c, channels, [&](i64 at) {
        const f32 d = denominator(at);
        return dy[pixel + at] * response.factor(d) * x[pixel + at] / d;
    });
    dx[i] = dy[i] * response.factor(denominator(c)) - factor * x[i] * sum;
}
