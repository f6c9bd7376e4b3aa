// The register tile of every dense convolution: a block of output pixels times output channels.
//
// acc[pixel][vector] += x[pixel's own channel, broadcast] * w[vector of output channels]. Packed
// filters put output channels on lanes and the reduction (r, s, c) outside, so one reduction step
// is NV loads, ROWS*PC broadcasts and ROWS*PC*NV multiply-adds, all from one running pointer each.
// With 16 to 28 accumulators that is bound by the multiply-add units: 2 * LANES FLOPs each a cycle.
// The order of one output's sum is r, s, c, whatever the tile: tiles never change a result's bits.
#pragma once

#include "activation.h"
#include "conv2d_stage.h"

namespace convloom {

// What a tile of ROWS x PC pixels and KB floats of channels becomes on this target: as it is where
// the registers hold it, else fewer vectors and fewer columns (packing by KB stays the same).
template <int KB, int ROWS, int PC>
struct TileShape {
    static constexpr int whole = KB / LANES;
    static constexpr bool fits = whole * ROWS * PC + whole + 1 <= VECTOR_REGISTERS;
    static constexpr int vectors = fits ? whole : whole % 2 == 0 ? 2 : 1;
    static constexpr int most = (VECTOR_REGISTERS - vectors - 1) / (vectors * ROWS);
    static constexpr int kept = most < 1 ? 1 : most < PC ? most : PC;
    // Two-row tiles serve 2x2 pools, which need an even number of columns.
    static constexpr int columns = fits ? PC : ROWS == 2 && kept > 1 ? kept / 2 * 2 : kept;
    static constexpr int channels = vectors * LANES;
};

// The taps of a filter, seen from the staged input. `run` reduction steps are contiguous in input
// and filter: S*C when columns are adjacent, else C.
struct Taps {
    i64 rows, row_step;
    i64 cols, col_step;
    i64 run;
};

// acc += the taps over the tile whose first pixel is at x. STEP is the distance of neighbouring
// pixels, tile_row that of the tile's rows; w advances KB floats a reduction step.
template <int NV, int ROWS, int PC, int STEP, int KB>
CL_INLINE void accumulate(vec (&acc)[ROWS * PC][NV], const f32* x, i64 tile_row, const f32* w,
                          const Taps& taps) {
    for (i64 r = 0; r < taps.rows; r++)
        for (i64 s = 0; s < taps.cols; s++) {
            const f32* at[ROWS];
            CL_UNROLL for (int row = 0; row < ROWS; row++)
                at[row] = x + r * taps.row_step + s * taps.col_step + row * tile_row;
            for (i64 k = 0; k < taps.run; k++) {
                vec filter[NV];
                CL_UNROLL for (int v = 0; v < NV; v++) filter[v] = load(w + v * LANES);
                CL_UNROLL for (int row = 0; row < ROWS; row++)
                    CL_UNROLL for (int p = 0; p < PC; p++) {
                        const vec pixel = broadcast(at[row][p * STEP]);
                        CL_UNROLL for (int v = 0; v < NV; v++)
                            acc[row * PC + p][v] = fma(pixel, filter[v], acc[row * PC + p][v]);
                    }
                w += KB;
                CL_UNROLL for (int row = 0; row < ROWS; row++) {
                    at[row]++;
                    CL_OPAQUE(at[row]);
                }
            }
        }
}

// Starts every pixel at the bias of its channels (or at zero); `left` channels remain.
template <int NV, int PIXELS>
CL_INLINE void start(vec (&acc)[PIXELS][NV], const f32* bias, i64 left) {
    CL_UNROLL for (int v = 0; v < NV; v++) {
        const vec b = bias ? load_tail(bias + v * LANES, left - v * LANES) : zero();
        CL_UNROLL for (int p = 0; p < PIXELS; p++) acc[p][v] = b;
    }
}

// Where a tile goes: distances of its rows, pixels and channels in floats, channels that are left.
struct Target {
    f32* data;
    i64 row, pixel, channel, left;
};

// What follows a layer: nothing.
struct Unchanged {
    CL_INLINE vec apply(vec x) { return x; }
    CL_INLINE vec mask(vec, vec g) { return g; }
    CL_INLINE f32 mask_one(f32, f32 g) { return g; }
};

// The activation of a layer whose constants are P.
template <class P>
struct Activated : Unchanged {
    CL_INLINE vec apply(vec x) { return activated<P>(x); }
};

// The mask of a gradient, or an activation, of a layer whose constants are P.
template <class P>
struct Masked : Unchanged {
    CL_INLINE vec mask(vec kept, vec g) { return masked<P>(kept, g); }
    CL_INLINE f32 mask_one(f32 kept, f32 g) {
        if constexpr (P::MASK == RELU)
            return kept <= 0 ? 0.0f : g;
        else
            return masked<P>(broadcast(kept), broadcast(g))[0];
    }
};
template <class P>
struct ActivatedOrMasked : Masked<P> {
    CL_INLINE vec apply(vec x) { return activated<P>(x); }
};

// Writes A::apply of acc, through A::mask where a mask is given. FULL: all channels are there and
// contiguous, so that whole vectors are stored; else one by one.
template <class A, bool FULL, int NV, int ROWS, int PC>
CL_INLINE void finish(vec (&acc)[ROWS * PC][NV], const Target& to, const f32* mask) {
    if constexpr (FULL) {
        CL_UNROLL for (int row = 0; row < ROWS; row++)
            CL_UNROLL for (int p = 0; p < PC; p++)
                CL_UNROLL for (int v = 0; v < NV; v++) {
                    const i64 at = row * to.row + p * to.pixel + v * LANES;
                    vec value = A::apply(acc[row * PC + p][v]);
                    if (mask) value = A::mask(load(mask + at), value);
                    store(to.data + at, value);
                }
    } else {
        f32 tile[ROWS * PC][NV * LANES];
        CL_UNROLL for (int p = 0; p < ROWS * PC; p++)
            CL_UNROLL for (int v = 0; v < NV; v++)
                store(tile[p] + v * LANES, A::apply(acc[p][v]));
        const i64 channels = min(to.left, NV * LANES);
        for (i64 row = 0; row < ROWS; row++)
            for (i64 p = 0; p < PC; p++)
                for (i64 k = 0; k < channels; k++) {
                    const i64 at = row * to.row + p * to.pixel + k * to.channel;
                    const f32 value = tile[row * PC + p][k];
                    to.data[at] = mask ? A::mask_one(mask[at], value) : value;
                }
    }
}

// Writes the 2x2, stride-2 maximum of a two-row tile and which of the four pixels it came from:
// the first one in scan order, except that NaN wins, the last one of several. Where relu makes
// all four zero the first is taken, as a pool behind the relu would.
template <bool FULL, int NV, int PC>
CL_INLINE void finish_pooled(vec (&acc)[2 * PC][NV], const Target& to, u8* index, bool rectify) {
    f32 tile[PC / 2][NV * LANES];
    u8 taken_tile[PC / 2][NV * LANES];
    CL_UNROLL for (int p = 0; p < PC / 2; p++)
        CL_UNROLL for (int v = 0; v < NV; v++) {
            const vec four[4] = {acc[2 * p][v], acc[2 * p + 1][v], acc[PC + 2 * p][v],
                                 acc[PC + 2 * p + 1][v]};
            vec best = four[0];
            ivec taken = broadcast_i32(0);
            CL_UNROLL for (int i = 1; i < 4; i++) {
                const ivec better = replaces(four[i], best);
                best = select(better, four[i], best);
                taken = select_i32(better, broadcast_i32(i), taken);
            }
            if (rectify) {
                taken = select_i32(best <= zero(), broadcast_i32(0), taken);
                best = relu(best);
            }
            if constexpr (FULL) {
                const i64 at = p * to.pixel + v * LANES;
                store(to.data + at, best);
                store_bytes(index + at, taken, LANES);
            } else {
                store(tile[p] + v * LANES, best);
                store_bytes(taken_tile[p] + v * LANES, taken, LANES);
            }
        }
    if constexpr (!FULL) {
        const i64 channels = min(to.left, NV * LANES);
        for (i64 p = 0; p < PC / 2; p++)
            for (i64 k = 0; k < channels; k++) {
                const i64 at = p * to.pixel + k * to.channel;
                to.data[at] = tile[p][k];
                index[at] = taken_tile[p][k];
            }
    }
}

// First unit of part `part` when `units` are cut into `parts` nearly equal ranges.
constexpr i64 part_begin(i64 units, i64 parts, i64 part) { return units * part / parts; }

constexpr i64 output_size(i64 size, i64 taps, i64 stride, i64 padding, i64 dilation) {
    return (size + 2 * padding - dilation * (taps - 1) - 1) / stride + 1;
}

// One residue class of the input gradient along one axis. Input positions h with
// (h + padding) % stride == residue see only the taps r = first_tap + j * tap_step, j < taps, and
// number i of them, h = first + stride * i, is the dot product of the filter's taps in reverse
// with gradient positions i + offset + j' * spread: a convolution of stride 1.
struct Residue {
    i64 first_tap, tap_step, taps, first, offset, spread;
};

constexpr i64 gcd(i64 a, i64 b) { return b == 0 ? a : gcd(b, a % b); }

constexpr Residue residue_class(i64 residue, i64 taps, i64 stride, i64 padding, i64 dilation) {
    Residue c{};
    c.tap_step = stride / gcd(stride, dilation);
    c.spread = dilation / gcd(stride, dilation);
    c.first = ((residue - padding) % stride + stride) % stride;
    while (c.first_tap < taps && c.first_tap * dilation % stride != residue) c.first_tap++;
    c.taps = c.first_tap < taps ? (taps - 1 - c.first_tap) / c.tap_step + 1 : 0;
    if (c.taps)
        c.offset = (c.first + padding - c.first_tap * dilation) / stride - (c.taps - 1) * c.spread;
    return c;
}

// Over all residue classes of an axis, the lowest and the highest offset that a tap adds.
struct Reach {
    i64 low, high;
};

constexpr Reach reach(i64 taps, i64 stride, i64 padding, i64 dilation) {
    Reach r{1 << 30, -(1 << 30)};
    for (i64 i = 0; i < stride; i++) {
        const Residue c = residue_class(i, taps, stride, padding, dilation);
        if (!c.taps) continue;
        const i64 high = c.offset + (c.taps - 1) * c.spread;
        r.low = c.offset < r.low ? c.offset : r.low;
        r.high = high > r.high ? high : r.high;
    }
    return r;
}

// Taps of all residue classes before `residue`.
constexpr i64 taps_before(i64 residue, i64 taps, i64 stride, i64 dilation) {
    i64 count = 0;
    for (i64 i = 0; i < residue; i++) count += residue_class(i, taps, stride, 0, dilation).taps;
    return count;
}

}  // namespace convloom
