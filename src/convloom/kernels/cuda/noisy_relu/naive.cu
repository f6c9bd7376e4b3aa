// y = max(0, r + r n) with r = max(0, x), n the standard normal number of the element's Philox word
//
// One thread an element, in memory order. Elements are numbered in NCHW order whatever the memory
// order (C channels of PIXELS pixels in NHWC order unless ROW), so that every layout and device has
// the same noise; with FIXED it is that of seed 0 and step 0.
// Limit: ten rounds of two 32-bit products, and two polynomials, an element.
#include "device/index.cuh"
#include "device/normal.cuh"
#include "device/philox.cuh"

template <class P>
__global__ void noisy_relu_naive(const f32* x, const u64* counter, f32* y, i64 size, i64 stream) {
    const i64 i = global_thread();
    if (i >= size) return;
    const Place at = place_of<P::C, 1, P::PIXELS, P::ROW != 0>(i);
    const i64 element = (at.image * P::C + at.channel) * P::PIXELS + at.col;
    const u64 seed = P::FIXED ? 0 : counter[0], step = P::FIXED ? 0 : counter[1];
    const PhiloxBlock drawn = philox(seed, u32(stream), step, u64(element) / 4);
    const f32 passed = x[i] <= 0.0f ? 0.0f : x[i];  // NaN passes
    const f32 noisy = passed * (1.0f + normal_number(drawn.word[element % 4]));
    y[i] = noisy <= 0.0f ? 0.0f : noisy;
}
