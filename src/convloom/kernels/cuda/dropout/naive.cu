// mask = 1 where the element's Philox word is at least the threshold, y = x * (mask * scale)
//
// One thread an element, in memory order; it draws the whole block of four words that its own is
// in. Elements are numbered in NCHW order whatever the memory order (C channels of PIXELS pixels
// in NHWC order unless ROW), so that every layout and device drops the same ones.
// Limit: ten rounds of two 32-bit products an element.
#include "device/index.cuh"
#include "device/philox.cuh"

template <class P>
__global__ void dropout_naive(const f32* x, const u64* counter, f32* y, u8* mask, i64 size,
                              i64 threshold, i64 stream, f32 scale) {
    const i64 i = global_thread();
    if (i >= size) return;
    const Place at = place_of<P::C, 1, P::PIXELS, P::ROW != 0>(i);
    const i64 element = (at.image * P::C + at.channel) * P::PIXELS + at.col;
    const PhiloxBlock drawn = philox(counter[0], u32(stream), counter[1], u64(element) / 4);
    const bool kept = drawn.word[element % 4] >= u64(threshold);
    mask[i] = kept;
    y[i] = x[i] * (kept ? scale : 0.0f);
}
