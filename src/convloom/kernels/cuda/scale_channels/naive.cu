// y = x * (mask * scale), with one mask for each channel of each sample
//
// One thread an element, in memory order: channels innermost if LAST, else one behind the other.
// Limit: 8 bytes of memory traffic an element.
#include "device/index.cuh"

template <class P>
__global__ void scale_channels_naive(const f32* x, const u8* mask, f32* y, i64 size, i64 channels,
                                     i64 pixels, f32 scale) {
    const i64 i = global_thread();
    if (i >= size) return;
    const i64 row = P::LAST != 0 ? i / (channels * pixels) * channels + i % channels : i / pixels;
    y[i] = x[i] * (f32(mask[row]) * scale);
}
