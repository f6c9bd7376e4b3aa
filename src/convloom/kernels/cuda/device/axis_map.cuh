// One axis of a map that acts on rows and columns apart: the taps of an output, and the outputs
// that an input may have a part in. The kinds are those of backends/mapping.py.
//
// P holds the sizes of device/images.cuh, those of the forward map; and HKIND, WKIND, HBEFORE,
// WBEFORE, STEP, TAPS.
#pragma once

#include "device/images.cuh"

enum Kind : i64 {
    SHIFT, REFLECT, REPLICATE, NEAREST, BILINEAR, ALIGNED, EVERY, MIRRORED, BLURRED
};

// An input and its weight; a negative index is no input.
struct MapTap {
    i32 index;
    f32 weight;
};

// The weights of a blur, from its middle outwards.
struct Weights {
    f32 at[5];
};

template <i64 KIND, i64 SIZE, i64 POSITIONS, i64 BEFORE, i64 STEP, i64 TAPS>
struct AxisMap {
    static constexpr int COUNT =
        KIND == BILINEAR || KIND == ALIGNED ? 2 : KIND == BLURRED ? int(TAPS) : 1;
    static constexpr i64 FIRST_NAIL = (SIZE - STEP * (POSITIONS - 1)) / 2;

    __device__ static MapTap tap(i64 p, i32 t, const Weights& weights) {
        if constexpr (KIND == BILINEAR || KIND == ALIGNED) {
            constexpr i64 below = KIND == ALIGNED ? greatest(POSITIONS - 1, 1) : 2 * POSITIONS;
            const i64 above = KIND == ALIGNED ? p * (SIZE - 1)
                                              : greatest((2 * p + 1) * SIZE - POSITIONS, 0);
            const f32 second = f32(above % below) / f32(below);
            if (t == 0) return {i32(above / below), 1.0f - second};
            return {i32(least(above / below + 1, SIZE - 1)), second};
        }
        i64 i = p - BEFORE;
        if (KIND == REFLECT) {
            i = i < 0 ? -i : i;
            i = i < SIZE ? i : 2 * (SIZE - 1) - i;
        }
        if (KIND == REPLICATE) i = least(greatest(i, 0), SIZE - 1);
        if (KIND == NEAREST) i = p * SIZE / POSITIONS;
        if (KIND == EVERY) i = p * STEP + FIRST_NAIL;
        if (KIND == MIRRORED) i = SIZE - 1 - p;
        if (KIND == BLURRED) i = p + t - TAPS / 2;
        f32 weight = 1.0f;
        if constexpr (KIND == BLURRED) {
            const i32 away = t - i32(TAPS / 2);
            weight = weights.at[away < 0 ? -away : away];
        }
        return {i < SIZE ? i32(i) : -1, weight};
    }

    // An output is interpolated from inputs less than one away: input i - 1 lies at output
    // before(i) / BELOW.
    static constexpr i64 BELOW = KIND == ALIGNED ? greatest(SIZE - 1, 1) : 2 * SIZE;
    __device__ static i64 before(i64 i) {
        return KIND == ALIGNED ? (i - 1) * (POSITIONS - 1) : (2 * i - 1) * POSITIONS - SIZE;
    }
    // Outputs [first, last] that may have a tap at input i.
    __device__ static i32 first_over(i64 i) {
        i64 first = i + BEFORE;
        if (KIND == REFLECT && i > 0 && i <= BEFORE) first = BEFORE - i;
        if (KIND == REPLICATE && i == 0) first = 0;
        if (KIND == NEAREST) first = i * POSITIONS / SIZE;
        if (KIND == BILINEAR || KIND == ALIGNED)
            first = i <= 1 ? 0 : greatest(before(i), 0) / BELOW;  // as before input 0 all lie on it
        if (KIND == EVERY) first = greatest(i - FIRST_NAIL, 0) / STEP;
        if (KIND == MIRRORED) first = SIZE - 1 - i;
        if (KIND == BLURRED) first = i - TAPS / 2;
        return i32(greatest(first, 0));
    }
    __device__ static i32 last_over(i64 i) {
        i64 last = i + BEFORE;
        if (KIND == REFLECT && i < SIZE - 1 && 2 * (SIZE - 1) - i + BEFORE < POSITIONS)
            last = 2 * (SIZE - 1) - i + BEFORE;
        if (KIND == REPLICATE && i == SIZE - 1) last = POSITIONS - 1;
        if (KIND == NEAREST) last = (i + 1) * POSITIONS / SIZE;
        if (KIND == BILINEAR || KIND == ALIGNED)
            last = i == SIZE - 1 ? POSITIONS - 1 : before(i + 2) / BELOW;
        if (KIND == EVERY) last = greatest(i - FIRST_NAIL, 0) / STEP;
        if (KIND == MIRRORED) last = SIZE - 1 - i;
        if (KIND == BLURRED) last = i + TAPS / 2;
        return i32(least(last, POSITIONS - 1));
    }
};

template <class P>
using RowMap = AxisMap<P::HKIND, P::H, P::OH, P::HBEFORE, P::STEP, P::TAPS>;
template <class P>
using ColMap = AxisMap<P::WKIND, P::W, P::OW, P::WBEFORE, P::STEP, P::TAPS>;

template <class P>
struct SpatialMap {
    // Calls visit(offset in x, weight) for the taps of an output that lie inside.
    template <class Visit>
    __device__ __forceinline__ static void taps(const Place& at, const Weights& weights,
                                                const Visit& visit) {
#pragma unroll 2
        for (i32 t = 0; t < RowMap<P>::COUNT; ++t) {
            const MapTap row = RowMap<P>::tap(at.row, t, weights);
            if (row.index < 0) continue;
#pragma unroll 2
            for (i32 u = 0; u < ColMap<P>::COUNT; ++u) {
                const MapTap col = ColMap<P>::tap(at.col, u, weights);
                if (col.index < 0) continue;
                visit(Images<P>::x_offset(at.image, at.channel, row.index, col.index),
                      row.weight * col.weight);
            }
        }
    }

    // Calls visit(offset in y, weight) for the outputs with a tap at an input.
    template <class Visit>
    __device__ __forceinline__ static void outputs(const Place& at, const Weights& weights,
                                                   const Visit& visit) {
        for (i32 p = RowMap<P>::first_over(at.row); p <= RowMap<P>::last_over(at.row); ++p)
            for (i32 t = 0; t < RowMap<P>::COUNT; ++t) {
                const MapTap row = RowMap<P>::tap(p, t, weights);
                if (row.index != at.row) continue;
                for (i32 q = ColMap<P>::first_over(at.col); q <= ColMap<P>::last_over(at.col); ++q)
                    for (i32 u = 0; u < ColMap<P>::COUNT; ++u) {
                        const MapTap col = ColMap<P>::tap(q, u, weights);
                        if (col.index != at.col) continue;
                        visit(Images<P>::y_offset(at.image, at.channel, p, q),
                              row.weight * col.weight);
                    }
            }
    }
};
