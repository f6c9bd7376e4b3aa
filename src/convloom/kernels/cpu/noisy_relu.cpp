// y = max(0, r + r n) with r = max(0, x), n the standard normal number of the element's Philox word.
//
// Arguments: x, counter (seed, step; with P::FIXED both are 0), y, elements, stream, channels,
// pixels. An item is CHUNK elements (a multiple of the words drawn at once). Elements are numbered
// in NCHW order whatever the memory order: with P::NHWC words are drawn in that order and scattered.
// Limit: ten rounds of two multiplications for four elements, two polynomials an element.
#include "normal.h"
#include "numbered.h"
#include "philox.h"

namespace convloom {

template <class P>
void noisy_relu(const Arg* args, long item, Worker*) {
    constexpr i64 WORDS = 4 * PHILOX_BLOCKS;
    const f32* x = static_cast<const f32*>(args[0].address);
    const u64* counter = static_cast<const u64*>(args[1].address);
    const u64 seed = P::FIXED != 0 ? 0 : counter[0], step = P::FIXED != 0 ? 0 : counter[1];
    f32* y = static_cast<f32*>(args[2].address);
    const i64 first = item * P::CHUNK, last = min(first + P::CHUNK, args[3].integer);
    const i64 channels = args[5].integer, pixels = args[6].integer;
    const auto noisy = [](f32 value, f32 gain) {
        const f32 passed = (value <= 0 ? 0.0f : value) * gain;  // NaN passes
        return passed <= 0 ? 0.0f : passed;
    };
    u32 words[WORDS];
    f32 gains[WORDS];
    for (i64 i = first; i < last; i += WORDS) {
        philox(seed, u32(args[4].integer), step, u64(i) / 4, words);
        for (i64 k = 0; k < WORDS; k += LANES) {
            ivec drawn;
            __builtin_memcpy(&drawn, words + k, sizeof drawn);
            drawn ^= broadcast_i32(i32(0x80000000u));
            store(gains + k, broadcast(1.0f) + normal_number(drawn));
        }
        const i64 count = min(WORDS, last - i);
        each_numbered<P::NHWC != 0>(i, count, channels, pixels,
                                    [&](i64 k, i64 at) { y[at] = noisy(x[at], gains[k]); });
    }
}

}  // namespace convloom
