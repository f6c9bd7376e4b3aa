// Philox4x32-10 (Salmon et al., SC 2011): the same words as convloom/random.py draws.
//
// Word i of a stream is word i % 4 of the block with counter (i/4 low, i/4 high, step, stream).
#pragma once

#include "abi.h"

namespace convloom {

constexpr int PHILOX_BLOCKS = 16;  // drawn together, so that the rounds vectorise

// Words of blocks [first, first + PHILOX_BLOCKS), as words[block * 4 + word].
static inline void philox(u64 seed, u32 stream, u64 step, u64 first, u32* words) {
    u32 c0[PHILOX_BLOCKS], c1[PHILOX_BLOCKS], c2[PHILOX_BLOCKS], c3[PHILOX_BLOCKS];
    for (int b = 0; b < PHILOX_BLOCKS; ++b) {
        c0[b] = u32(first + b);
        c1[b] = u32((first + b) >> 32);
        c2[b] = u32(step);
        c3[b] = stream;
    }
    u32 k0 = u32(seed), k1 = u32(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int b = 0; b < PHILOX_BLOCKS; ++b) {
            const u64 first_product = u64(0xD2511F53u) * c0[b];
            const u64 second_product = u64(0xCD9E8D57u) * c2[b];
            c0[b] = u32(second_product >> 32) ^ c1[b] ^ k0;
            c1[b] = u32(second_product);
            c2[b] = u32(first_product >> 32) ^ c3[b] ^ k1;
            c3[b] = u32(first_product);
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int b = 0; b < PHILOX_BLOCKS; ++b) {
        words[4 * b] = c0[b];
        words[4 * b + 1] = c1[b];
        words[4 * b + 2] = c2[b];
        words[4 * b + 3] = c3[b];
    }
}

}  // namespace convloom
