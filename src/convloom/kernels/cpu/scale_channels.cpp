// y = x * (mask * scale), with one mask for each channel of each sample.
//
// Arguments: x, mask (u8, N x C), y, samples, channels, pixels, scale (real). With P::LAST channels
// are innermost in memory: an item is one sample, and vectors run along the channels of a pixel.
// Else an item is one channel of one sample, and vectors run along its pixels. A non-finite x under
// a zero mask gives NaN, as in PyTorch. Limit: memory bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void scale_channels(const Arg* args, long item, Worker*) {
    const i64 channels = args[4].integer, pixels = args[5].integer;
    const i64 size = P::LAST ? channels * pixels : pixels;
    const f32* x = static_cast<const f32*>(args[0].address) + item * size;
    const u8* mask = static_cast<const u8*>(args[1].address) + item * (P::LAST ? channels : 1);
    f32* y = static_cast<f32*>(args[2].address) + item * size;
    const f32 scale = f32(args[6].real);
    if constexpr (P::LAST != 0) {
        for (i64 c = 0; c < channels; c += LANES) {
            const i64 left = channels - c;
            f32 factors[LANES] = {};
            for (i64 l = 0; l < min(left, LANES); ++l) factors[l] = mask[c + l] ? scale : 0.0f;
            const vec factor = load(factors);
            for (i64 at = c; at < size; at += channels)
                store_tail(y + at, load_tail(x + at, left) * factor, left);
        }
    } else {
        const vec factor = broadcast(*mask ? scale : 0.0f);
        for (i64 i = 0; i < size; i += LANES)
            store_tail(y + i, load_tail(x + i, size - i) * factor, size - i);
    }
}

}  // namespace convloom
