// The cells of one axis that a pooling window meets, and the windows that meet a cell.
#pragma once

#include "simd.h"

namespace convloom {

struct Range {
    i64 first;
    i64 last;  // exclusive
};

// The windows of one axis: `positions` of them over `size` cells. Those of an ADAPTIVE pool cover
// the cells in nearly equal parts; others slide, and the first starts PADDING cells before the
// input (behind its start where PADDING is negative).
template <long ADAPTIVE, long KERNEL, long STRIDE, long PADDING, long DILATION>
struct Windows {
    static constexpr i64 EXTENT = (KERNEL - 1) * DILATION + 1;
    i64 size, positions;

    // The cell of tap 0 of window `at`; it may lie outside.
    i64 start(i64 at) const { return ADAPTIVE ? at * size / positions : at * STRIDE - PADDING; }

    // Taps of window `at` that lie inside.
    Range taps(i64 at) const {
        const i64 begin = start(at);
        if (ADAPTIVE) return {0, ceil_div((at + 1) * size, positions) - begin};
        const i64 first = begin < 0 ? ceil_div(-begin, DILATION) : 0;
        const i64 last = begin < size ? min(KERNEL, ceil_div(size - begin, DILATION)) : 0;
        return {first, max(first, last)};
    }

    // Windows that reach over a cell; with a dilation some may have no tap there.
    Range over(i64 cell) const {
        if (ADAPTIVE) return {cell * positions / size, ceil_div((cell + 1) * positions, size)};
        const i64 reach = cell + PADDING;
        const i64 first = reach < EXTENT ? 0 : (reach - EXTENT) / STRIDE + 1;
        return {first, reach < 0 ? first : max(first, min(reach / STRIDE + 1, positions))};
    }

    // Whether window `at`, which reaches over the cell, has a tap there.
    bool meets(i64 at, i64 cell) const {
        return ADAPTIVE || DILATION == 1 || (cell - start(at)) % DILATION == 0;
    }

    // Cells that an average over window `at` counts: those inside, or with COUNT_PADDING also the
    // padding, but never what overhangs it.
    template <long COUNT_PADDING>
    i64 counted(i64 at) const {
        if (ADAPTIVE || !COUNT_PADDING) {
            const Range inside = taps(at);
            return inside.last - inside.first;
        }
        const i64 begin = start(at);
        return min(begin + KERNEL, size + PADDING) - begin;
    }
};

template <class P>
using RowWindows = Windows<P::ADAPTIVE, P::KH, P::UH, P::PH, P::DH>;
template <class P>
using ColWindows = Windows<P::ADAPTIVE, P::KW, P::UW, P::PW, P::DW>;

}  // namespace convloom
