// Standard normal numbers out of random words, by the inverse of the distribution function: those
// of convloom/random.py, to float32. Algorithm AS 241, PPND7 (Wichura, Applied Statistics 37, 1988),
// to 2e-7 of the number or, near 0, of its word's place. The twin of cpu/normal.h.
#pragma once

#include "device/functions.cuh"

// The number at (word + 1/2) / 2^32.
__device__ __forceinline__ f32 normal_number(u32 word) {
    const f32 scale = 2.32830644e-10f;  // 2^-32
    const i32 place = i32(word ^ 0x80000000u);
    const f32 q = (f32(place) + 0.5f) * scale;  // from -1/2 to 1/2
    if (fabsf(q) <= 0.425f) {
        const f32 r = 0.180625f - q * q;
        const f32 up = fmaf(fmaf(fmaf(59.109374720f, r, 159.29113202f), r, 50.434271938f), r,
                            3.3871327179f);
        const f32 down = fmaf(fmaf(fmaf(67.187563600f, r, 78.757757664f), r, 17.895169469f), r,
                              1.0f);
        return q * up / down;
    }
    // The smaller of word and ~word, which rounds the tails' own places and not those of 1/2.
    const f32 p = (f32(word < ~word ? word : ~word) + 0.5f) * scale;
    const f32 s = sqrtf(-natural_log(p)) - 1.6f;
    const f32 up = fmaf(fmaf(fmaf(0.17023821103f, s, 1.3067284816f), s, 2.7568153900f), s,
                        1.4234372777f);
    const f32 down = fmaf(fmaf(0.12021132975f, s, 0.73700164250f), s, 1.0f);
    return copysignf(up / down, q);
}
