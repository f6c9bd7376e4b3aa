// The cells of one axis that a pooling window meets, and the windows that meet a cell.
#pragma once

#include "simd.h"

namespace convloom {

struct Range {
    i64 first;
    i64 last;  // exclusive
};

// Taps of window `at` that lie inside an input of `size` cells.
template <long KERNEL, long STRIDE, long PADDING, long DILATION>
CL_INLINE Range taps_inside(i64 at, i64 size) {
    const i64 start = at * STRIDE - PADDING;
    const i64 first = start < 0 ? ceil_div(-start, DILATION) : 0;
    const i64 last = start < size ? min(KERNEL, ceil_div(size - start, DILATION)) : 0;
    return {first, max(first, last)};
}

// Windows of an undilated pool, of `positions`, that hold input cell `cell`.
template <long KERNEL, long STRIDE, long PADDING>
CL_INLINE Range windows_over(i64 cell, i64 positions) {
    const i64 reach = cell + PADDING;
    const i64 first = reach < KERNEL ? 0 : (reach - KERNEL) / STRIDE + 1;
    return {first, min(reach / STRIDE + 1, positions)};
}

// Cells that average window `at` divides by: padding counts when COUNT_PADDING, overhang never.
template <long KERNEL, long STRIDE, long PADDING, long COUNT_PADDING>
CL_INLINE i64 cells_counted(i64 at, i64 size) {
    i64 start = at * STRIDE - PADDING, stop = min(start + KERNEL, size + PADDING);
    if (!COUNT_PADDING) start = max(start, 0), stop = min(stop, size);
    return stop - start;
}

}  // namespace convloom
