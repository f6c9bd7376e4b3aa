// Convolutions of many small groups (depthwise: one channel each), every lane with its own inputs.
//
// Broadcasting an input would fill only a group's few lanes. Here lane l, an output channel of
// group l / OUT, multiplies its own group's channels, which staging lays side by side:
//     staged[row][col][j][lane] = x[row][col][lane / OUT * IN + j],   j < IN
// so every step is acc += staged vector * filter vector, without waste. Depthwise input (OUT = IN
// = 1) needs no rearrangement. P::OUT and P::IN are the channels of a group on the lanes' side and
// on the reduction's side, LT = G * OUT lanes in all, LTP rounded up to whole vectors.
#pragma once

#include "conv2d_core.h"
#include "lanes.h"

namespace convloom {

using AllLanes = MakeLanes<LANES>::type;

template <class P>
struct Lanes {
    static constexpr i64 TOTAL = P::G * P::OUT;
    static constexpr i64 PADDED = round_up(TOTAL, 16);  // of the widest vectors: one layout for all
    static constexpr i64 PIXEL = P::IN * PADDED;
};

// For lane l of a vector: the lane of its group's j-th channel, where IN == OUT divides LANES.
template <int GROUP, int J, int... L>
CL_INLINE vec group_channel(vec v, LaneList<L...>) {
    return shuffle<(L / GROUP * GROUP + J)...>(v, v);
}

template <int GROUP, int J>
CL_INLINE void spread_groups(f32* to, i64 step, vec v) {
    store(to + J * step, group_channel<GROUP, J>(v, AllLanes{}));
    if constexpr (J + 1 < GROUP) spread_groups<GROUP, J + 1>(to, step, v);
}

// Rearranges one pixel of `channels` = G * IN floats.
template <class P>
CL_INLINE void spread_pixel(f32* to, const f32* from) {
    using L = Lanes<P>;
    if constexpr (P::IN == P::OUT && LANES % P::IN == 0 && L::TOTAL % LANES == 0) {
        for (i64 l = 0; l < L::TOTAL; l += LANES)
            spread_groups<P::IN, 0>(to + l, L::PADDED, load(from + l));
    } else {
        for (i64 g = 0; g < P::G; g++)
            for (i64 j = 0; j < P::IN; j++)
                for (i64 i = 0; i < P::OUT; i++)
                    to[j * L::PADDED + g * P::OUT + i] = from[g * P::IN + j];
    }
}

// Stages a window of an image of G * IN channels for lanes. What must be rearranged is first staged
// plainly behind it, where `window.rows * window.cols * G * IN` more floats must be free.
template <class P, bool PLANAR>
static void stage_lanes(f32* to, const f32* data, i64 height, i64 width, const Window& window) {
    using L = Lanes<P>;
    constexpr i64 CHANNELS = P::G * P::IN;
    if constexpr (P::IN == 1 && P::OUT == 1) {
        stage<PLANAR>(to, L::PIXEL, Image{data, height, width, CHANNELS, 0, CHANNELS}, window);
        return;
    }
    const i64 pixels = window.rows * window.cols;
    f32* plain = to + pixels * L::PIXEL;
    stage<PLANAR>(plain, CHANNELS, Image{data, height, width, CHANNELS, 0, CHANNELS}, window);
    for (i64 i = 0; i < pixels; i++) spread_pixel<P>(to + i * L::PIXEL, plain + i * CHANNELS);
}

// acc += taps over a tile of PC pixels of one row, one vector of lanes. Neighbouring pixels are
// UW * PIXEL floats apart. COLS > 0 fixes the number of taps in a row: each vector of the row is
// then loaded once and serves every pixel that it reaches.
template <class P, int PC, int UW, int COLS>
CL_INLINE void accumulate_lanes(vec (&acc)[PC][1], const f32* x, const f32* w, const Taps& taps) {
    constexpr i64 LT = Lanes<P>::PADDED, PIXEL = Lanes<P>::PIXEL;
    for (i64 r = 0; r < taps.rows; r++) {
        const f32* row = x + r * taps.row_step;
        if constexpr (COLS > 0) {
            for (i64 j = 0; j < P::IN; j++) {
                vec filter[COLS];
                CL_UNROLL for (int s = 0; s < COLS; s++)
                    filter[s] = load(w + (s * P::IN + j) * LT);
                CL_UNROLL for (int i = 0; i < (PC - 1) * UW + COLS; i++) {
                    const vec pixel = load(row + i * PIXEL + j * LT);
                    CL_UNROLL for (int s = 0; s < COLS; s++)
                        if (i >= s && (i - s) % UW == 0 && (i - s) / UW < PC)
                            acc[(i - s) / UW][0] = fma(pixel, filter[s], acc[(i - s) / UW][0]);
                }
            }
            w += COLS * PIXEL;
        } else {
            for (i64 s = 0; s < taps.cols; s++)
                for (i64 j = 0; j < P::IN; j++, w += LT) {
                    const f32* at = row + s * taps.col_step + j * LT;
                    const vec filter = load(w);
                    CL_UNROLL for (int p = 0; p < PC; p++)
                        acc[p][0] = fma(load(at + p * UW * PIXEL), filter, acc[p][0]);
                }
        }
    }
}

// Writes one tile: whole vectors where they are, else one channel after the other.
template <class A, int PC>
CL_INLINE void finish_lanes(vec (&acc)[PC][1], const Target& to, const f32* mask) {
    if (to.left >= LANES && to.channel == 1)
        finish<A, true, 1, 1, PC>(acc, to, mask);
    else
        finish<A, false, 1, 1, PC>(acc, to, mask);
}

}  // namespace convloom
