// Sums over neighbouring channels of one pixel, from a row in scratch memory with zeros around it.
//
// P::LOW neighbours below and P::HIGH above; or, with P::BLOCK, blocks of that many channels whose
// every channel has the block's sum.
#pragma once

#include "simd.h"

namespace convloom {

// Floats of scratch that one row of `channels` takes, and where its first channel lies.
template <class P>
CL_INLINE i64 window_row(i64 channels) {
    return round_up(channels + P::LOW + P::HIGH, LANES) + 3 * LANES;
}
template <class P>
CL_INLINE f32* window_start(f32* row) {
    constexpr long reach = P::LOW > P::HIGH ? P::LOW : P::HIGH;
    return row + round_up(reach, LANES);
}

// Zeros around the channels: what lies outside counts as 0.
template <class P>
CL_INLINE void clear_around(f32* v, i64 channels) {
    constexpr long reach = P::LOW > P::HIGH ? P::LOW : P::HIGH;
    for (i64 i = 1; i <= reach; ++i) v[-i] = 0;
    for (i64 i = 0; i < reach + LANES; ++i) v[channels + i] = 0;
}

// Replaces blocks of channels by their sums, in v itself.
template <class P>
CL_INLINE void sum_blocks(f32* v, i64 channels) {
    for (i64 c = 0; c < channels; c += P::BLOCK) {
        const i64 last = min(c + P::BLOCK, channels);
        f32 sum = 0;
        for (i64 i = c; i < last; ++i) sum += v[i];
        for (i64 i = c; i < last; ++i) v[i] = sum;
    }
}

// The sums over the windows around LANES channels that begin at v.
template <class P, long LOW, long HIGH>
CL_INLINE vec window_sum(const f32* v) {
    if constexpr (P::BLOCK != 0) return load(v);
    vec sum = load(v - LOW);
    CL_UNROLL for (long i = 1 - LOW; i <= HIGH; ++i) sum += load(v + i);
    return sum;
}

}  // namespace convloom
