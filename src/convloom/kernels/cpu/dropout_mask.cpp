// mask = 1 where the element's Philox word is at least the threshold, else 0.
//
// Arguments: counter (seed, step), mask, elements, threshold (0 to 2^32), stream. An item is CHUNK
// elements (a multiple of the words drawn at once). Limit: ten rounds of two multiplications for
// four elements.
#include "philox.h"
#include "simd.h"

namespace convloom {

template <class P>
void dropout_mask(const Arg* args, long item, Worker*) {
    constexpr i64 WORDS = 4 * PHILOX_BLOCKS;
    const u64* counter = static_cast<const u64*>(args[0].address);
    u8* mask = static_cast<u8*>(args[1].address);
    const i64 first = item * P::CHUNK, last = min(first + P::CHUNK, args[2].integer);
    const u64 threshold = u64(args[3].integer);
    u32 words[WORDS];
    for (i64 i = first; i < last; i += WORDS) {
        philox(counter[0], u32(args[4].integer), counter[1], u64(i) / 4, words);
        for (i64 k = 0; k < min(WORDS, last - i); ++k) mask[i + k] = words[k] >= threshold;
    }
}

}  // namespace convloom
