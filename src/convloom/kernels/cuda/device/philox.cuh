// Philox4x32-10 (Salmon et al., SC 2011): the same words as convloom/random.py draws.
//
// Word i of a stream is word i % 4 of the block with counter (i/4 low, i/4 high, step, stream).
#pragma once

#include "device/types.cuh"

struct PhiloxBlock {
    u32 word[4];
};

__device__ __forceinline__ PhiloxBlock philox(u64 seed, u32 stream, u64 step, u64 block) {
    u32 c0 = u32(block), c1 = u32(block >> 32), c2 = u32(step), c3 = stream;
    u32 k0 = u32(seed), k1 = u32(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const u64 first = u64(0xD2511F53u) * c0, second = u64(0xCD9E8D57u) * c2;
        c0 = u32(second >> 32) ^ c1 ^ k0;
        c1 = u32(second);
        c2 = u32(first >> 32) ^ c3 ^ k1;
        c3 = u32(first);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}
