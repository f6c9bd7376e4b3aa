// Standard normal numbers out of random words, by the inverse of the distribution function: those
// of convloom/random.py, to float32. Algorithm AS 241, PPND7 (Wichura, Applied Statistics 37, 1988),
// to 2e-7 of the number or, near 0, of its word's place. The twin of cuda/device/normal.cuh.
#pragma once

#include "functions.h"

namespace convloom {

// Of words w as w - 2^31: the number at (w + 1/2) / 2^32.
CL_INLINE vec normal_number(ivec word) {
    const vec half = broadcast(0.5f), scale = broadcast(2.32830644e-10f);  // 2^-32
    const vec q = (__builtin_convertvector(word, vec) + half) * scale;     // from -1/2 to 1/2
    const vec r = broadcast(0.180625f) - q * q;
    vec up = broadcast(59.109374720f), down = broadcast(67.187563600f);
    up = fma(up, r, broadcast(159.29113202f)), down = fma(down, r, broadcast(78.757757664f));
    up = fma(up, r, broadcast(50.434271938f)), down = fma(down, r, broadcast(17.895169469f));
    up = fma(up, r, broadcast(3.3871327179f)), down = fma(down, r, broadcast(1.0f));
    const vec centre = q * up / down;
    // The smaller of w and 2^32 - 1 - w, which rounds the tails' own places and not those of 1/2.
    const ivec least = (ivec)((word ^ (word >> 31)) ^ broadcast_i32(0x7fffffff));
    const vec p = (__builtin_convertvector(least, vec) + half) * scale;
    vec s = broadcast(-1.0f) * natural_log(p);
    CL_UNROLL for (int l = 0; l < LANES; ++l) s[l] = __builtin_sqrtf(s[l]);
    s -= broadcast(1.6f);
    up = broadcast(0.17023821103f), down = broadcast(0.12021132975f);
    up = fma(up, s, broadcast(1.3067284816f)), down = fma(down, s, broadcast(0.73700164250f));
    up = fma(up, s, broadcast(2.7568153900f)), down = fma(down, s, broadcast(1.0f));
    up = fma(up, s, broadcast(1.4234372777f));
    const vec tail = with_sign_of(up / down, q);
    return select(magnitude(q) <= broadcast(0.425f), centre, tail);
}

}  // namespace convloom
