// One axis of a map that acts on rows and columns apart: the taps of an output, and the outputs
// that an input may have a part in. The kinds are those of backends/mapping.py.
#pragma once

#include "simd.h"

namespace convloom {

enum Kind : long {
    SHIFT, REFLECT, REPLICATE, NEAREST, BILINEAR, ALIGNED, EVERY, MIRRORED, BLURRED
};

struct Range {
    i64 first;
    i64 last;  // exclusive
};

// An input and its weight; a negative index is no input.
struct Tap {
    i64 index;
    f32 weight;
};

// The weights of a blur, from its middle outwards.
struct Weights {
    f32 at[5];
};

// `size` inputs become `positions` outputs.
template <long KIND, long BEFORE, long STEP, long TAPS>
struct AxisMap {
    static constexpr i64 COUNT =
        KIND == BILINEAR || KIND == ALIGNED ? 2 : KIND == BLURRED ? TAPS : 1;
    i64 size, positions;

    i64 first_nail() const { return (size - STEP * (positions - 1)) / 2; }

    Tap tap(i64 p, i64 t, const Weights& weights) const {
        if constexpr (KIND == BILINEAR || KIND == ALIGNED) {
            const i64 above = KIND == ALIGNED ? p * (size - 1)
                                              : max((2 * p + 1) * size - positions, 0);
            const i64 below = KIND == ALIGNED ? max(positions - 1, 1) : 2 * positions;
            const f32 second = f32(above % below) / f32(below);
            if (t == 0) return {above / below, 1.0f - second};
            return {min(above / below + 1, size - 1), second};
        }
        i64 i = p - BEFORE;
        if (KIND == REFLECT) {
            i = i < 0 ? -i : i;
            i = i < size ? i : 2 * (size - 1) - i;
        }
        if (KIND == REPLICATE) i = min(max(i, 0), size - 1);
        if (KIND == NEAREST) i = p * size / positions;
        if (KIND == EVERY) i = p * STEP + first_nail();
        if (KIND == MIRRORED) i = size - 1 - p;
        if (KIND == BLURRED) i = p + t - TAPS / 2;
        const i64 distance = t < TAPS / 2 ? TAPS / 2 - t : t - TAPS / 2;
        return {i < size ? i : -1, KIND == BLURRED ? weights.at[distance] : 1.0f};
    }

    // Outputs that may have a tap at input i (a blur is its own gradient).
    Range over(i64 i) const {
        i64 first = i + BEFORE, last = first;
        if (KIND == REFLECT) {
            if (i > 0 && i <= BEFORE) first = BEFORE - i;
            const i64 other = 2 * (size - 1) - i + BEFORE;
            if (i < size - 1 && other < positions) last = other;
        }
        if (KIND == REPLICATE && i == 0) first = 0;
        if (KIND == REPLICATE && i == size - 1) last = positions - 1;
        if (KIND == NEAREST) first = i * positions / size, last = (i + 1) * positions / size;
        if (KIND == BILINEAR || KIND == ALIGNED) {
            // Those that lie from one input before to one behind.
            const i64 below = KIND == ALIGNED ? max(size - 1, 1) : 2 * size;
            const i64 before = KIND == ALIGNED ? (i - 1) * (positions - 1)
                                               : (2 * i - 1) * positions - size;
            const i64 behind = before + (KIND == ALIGNED ? 2 * (positions - 1) : 4 * positions);
            first = i <= 1 ? 0 : max(before, 0) / below;  // outputs before input 0 lie on it
            last = i == size - 1 ? positions - 1 : behind / below;
        }
        if (KIND == EVERY) first = last = max(i - first_nail(), 0) / STEP;
        if (KIND == MIRRORED) first = last = size - 1 - i;
        return {max(first, 0), min(last + 1, positions)};
    }
};

template <class P>
using RowMap = AxisMap<P::HKIND, P::HBEFORE, P::STEP, P::TAPS>;
template <class P>
using ColMap = AxisMap<P::WKIND, P::WBEFORE, P::STEP, P::TAPS>;

CL_INLINE Weights weights_of(const Arg* args) {
    Weights weights;
    for (int i = 0; i < 5; ++i) weights.at[i] = f32(args[i].real);
    return weights;
}

}  // namespace convloom
