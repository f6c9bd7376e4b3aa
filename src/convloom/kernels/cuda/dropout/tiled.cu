// mask = 1 where the element's Philox word is at least the threshold, y = x * (mask * scale)
//
// A thread takes the four elements whose words are one block: neighbours in row-major memory (ROW),
// loaded and stored at once; else four neighbouring pixels of a channel, whose neighbours in memory
// are the same pixels of other channels, and other threads'. PIXELS is then a multiple of four.
// Against naive: a block of words is drawn once, not four times.
// Limit: 9 bytes of memory traffic an element.
#include "device/fours.cuh"
#include "device/index.cuh"
#include "device/philox.cuh"

template <class P>
__global__ void dropout_tiled(const f32* x, const u64* counter, f32* y, u8* mask, i64 size,
                              i64 threshold, i64 stream, f32 scale) {
    const i64 thread = global_thread();
    if (4 * thread >= size) return;
    i64 block = thread, first = 4 * thread;
    if constexpr (P::ROW == 0) {
        // Threads count channels first, then fours of pixels, then samples.
        constexpr i64 FOURS = P::PIXELS / 4;
        const i64 channel = thread % P::C, four = thread / P::C % FOURS;
        const i64 image = thread / (P::C * FOURS);
        block = (image * P::C + channel) * FOURS + four;
        first = (image * P::PIXELS + 4 * four) * P::C + channel;
    }
    const PhiloxBlock drawn = philox(counter[0], u32(stream), counter[1], u64(block));
    if constexpr (P::ROW == 0) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            const i64 at = first + v * P::C;
            const bool kept = drawn.word[v] >= u64(threshold);
            mask[at] = kept;
            y[at] = x[at] * (kept ? scale : 0.0f);
        }
    } else {
        const i64 left = size - first;
        Four four = load_four(x + first, left);
        u32 bytes = 0;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            const bool kept = drawn.word[v] >= u64(threshold);
            bytes |= u32(kept) << (8 * v);
            four.at[v] *= kept ? scale : 0.0f;
        }
        store_four(y + first, four, left);
        if (left >= 4) {
            *reinterpret_cast<u32*>(mask + first) = bytes;
        } else {
            for (int v = 0; v < left; ++v) mask[first + v] = u8(bytes >> (8 * v));
        }
    }
}
