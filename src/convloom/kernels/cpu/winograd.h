// What the kernels of minimal filtering share: input tiles, staged rows.
#pragma once

#include "simd.h"

namespace convloom {

// Rows of B^T (4x4) times four vectors.
CL_INLINE void winograd_input_rows(const vec* d, vec* t) {
    t[0] = d[0] - d[2];
    t[1] = d[1] + d[2];
    t[2] = d[2] - d[1];
    t[3] = d[1] - d[3];
}

// B^T d B of one 4x4 tile of C channels, pixels PIXEL floats apart; position p goes to v + p * step.
template <i64 C, i64 PIXEL>
CL_INLINE void winograd_input(const f32* d, i64 row, f32* v, i64 step) {
    for (i64 c = 0; c < C; c += LANES) {
        vec rows[4][4], column[4], t[4];
        CL_UNROLL for (int j = 0; j < 4; j++) {
            CL_UNROLL for (int i = 0; i < 4; i++) column[i] = load(d + i * row + j * PIXEL + c);
            winograd_input_rows(column, t);
            CL_UNROLL for (int i = 0; i < 4; i++) rows[i][j] = t[i];
        }
        CL_UNROLL for (int i = 0; i < 4; i++) {
            winograd_input_rows(rows[i], t);
            CL_UNROLL for (int j = 0; j < 4; j++) store_aligned(v + (i * 4 + j) * step + c, t[j]);
        }
    }
}

// Copies C channels of ``rows`` rows of ``columns`` pixels that start at row ``first`` and ``pad_w``
// pixels left of an NHWC image of CT channels, with zeros where there is no image.
template <i64 C, i64 CT>
void winograd_stage(const f32* x, i64 h, i64 w, i64 first, i64 rows, i64 pad_w, i64 columns,
                    f32* stage) {
    const i64 inside = min(w, columns - pad_w);
    for (i64 i = 0; i < rows; i++) {
        const i64 from = first + i;
        f32* to = stage + i * columns * C;
        if (from < 0 || from >= h) {
            fill_zero(to, columns * C);
            continue;
        }
        fill_zero(to, pad_w * C);
        if (C == CT)
            copy(to + pad_w * C, x + from * w * C, inside * C);
        else
            for (i64 q = 0; q < inside; q++)
                copy(to + (pad_w + q) * C, x + (from * w + q) * CT, C);
        fill_zero(to + (pad_w + inside) * C, (columns - pad_w - inside) * C);
    }
}

}  // namespace convloom
