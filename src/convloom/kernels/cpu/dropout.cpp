// mask = 1 where the element's Philox word is at least the threshold, y = x * (mask * scale).
//
// Arguments: x, counter (seed, step), y, mask, elements, threshold (0 to 2^32), stream, scale
// (real), channels, pixels. An item is CHUNK elements (a multiple of the words drawn at once).
// Elements are numbered in NCHW order whatever the memory order, so that every layout and device
// drops the same ones: with P::NHWC the words are drawn in that order and scattered.
// Limit: ten rounds of two multiplications for four elements.
#include "numbered.h"
#include "philox.h"
#include "simd.h"

namespace convloom {

template <class P>
void dropout(const Arg* args, long item, Worker*) {
    constexpr i64 WORDS = 4 * PHILOX_BLOCKS;
    const f32* x = static_cast<const f32*>(args[0].address);
    const u64* counter = static_cast<const u64*>(args[1].address);
    f32* y = static_cast<f32*>(args[2].address);
    u8* mask = static_cast<u8*>(args[3].address);
    const i64 first = item * P::CHUNK, last = min(first + P::CHUNK, args[4].integer);
    const u64 threshold = u64(args[5].integer);
    const f32 scale = f32(args[7].real);
    const i64 channels = args[8].integer, pixels = args[9].integer;
    u32 words[WORDS];
    for (i64 i = first; i < last; i += WORDS) {
        philox(counter[0], u32(args[6].integer), counter[1], u64(i) / 4, words);
        const i64 count = min(WORDS, last - i);
        each_numbered<P::NHWC != 0>(i, count, channels, pixels, [&](i64 k, i64 at) {
            const bool kept = words[k] >= threshold;
            mask[at] = kept;
            y[at] = x[at] * (kept ? scale : 0.0f);
        });
    }
}

}  // namespace convloom
