// Columns of a row-major matrix copied as strips two vectors wide: a register tile that walks the
// rows then reads consecutive memory, whatever the matrix's row length, and needs no tail case.
#pragma once

#include "simd.h"

namespace convloom {

constexpr long STRIP = 2 * LANES;

// Columns [at, at + width) of `rows` rows of length COLS, to [strip][row][STRIP], zero-filled.
template <long COLS>
CL_INLINE void pack_strips(const f32* matrix, long at, long width, long rows, f32* strips) {
    for (long s = 0; s < width; s += STRIP) {
        f32* to = strips + s * rows;
        const long left = COLS - (at + s);
        for (long r = 0; r < rows; ++r, to += STRIP) {
            const f32* from = matrix + r * COLS + at + s;
            store_aligned(to, load_tail(from, left));
            store_aligned(to + LANES, load_tail(from + LANES, left - LANES));
        }
    }
}

// A compile-time number as an argument.
template <int N>
struct Size {
    static constexpr int value = N;
};

}  // namespace convloom
