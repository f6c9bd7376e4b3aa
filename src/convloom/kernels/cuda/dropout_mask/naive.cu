// mask = 1 where the element's Philox word is at least the threshold, else 0
//
// One thread for four elements, whose words are one block. Limit: ten rounds of two 32-bit products
// for four elements.
#include "device/index.cuh"
#include "device/philox.cuh"

template <class P>
__global__ void dropout_mask_naive(const u64* counter, u8* mask, i64 size, i64 threshold,
                                   i64 stream) {
    const i64 i = 4 * global_thread();
    if (i >= size) return;
    const PhiloxBlock drawn = philox(counter[0], u32(stream), counter[1], u64(i) / 4);
    for (int k = 0; k < 4; ++k)
        if (i + k < size) mask[i + k] = drawn.word[k] >= u64(threshold);
}
