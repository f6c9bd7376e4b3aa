// Filter and bias gradients of a convolution of many small groups, as partial sums over chunks
// (conv2d_lanes.h: lanes are filters). dw[r, s, j, lane] sums staged x times dy, lane by lane.
//
// Item: a fixed range of the strips of all images, with a partial of its own. The register tile is
// RT rows of taps x A contiguous (s, j) of one vector of lanes, summed over a strip's pixels: one
// load an FMA. Limit: bytes x and dy; 2*N*K*P*Q*IN*R*S FLOPs.
// One partial is [R][PIECES][RUN_PADDED][lanes], followed by the bias gradient's lanes.
// Arguments: x, dy, partials, N, H, W, chunks, strips.
#include "conv2d_lanes.h"

namespace convloom {

template <int ROWS, int A, i64 LT, i64 ROW>
CL_INLINE void lanes_wgrad_tile(f32* dw, const f32* x, i64 x_row, i64 x_line, i64 x_pixel,
                                const f32* dy, i64 dy_pixel, i64 left, i64 rows, i64 cols) {
    vec acc[ROWS * A];
    CL_UNROLL for (int i = 0; i < ROWS * A; i++) acc[i] = load(dw + i / A * ROW + i % A * LT);
    for (i64 p = 0; p < rows; p++) {
        const f32* at[ROWS];
        CL_UNROLL for (int r = 0; r < ROWS; r++) at[r] = x + p * x_line + r * x_row;
        for (i64 q = 0; q < cols; q++, dy += dy_pixel) {
            const vec g = load_tail(dy, left);
            CL_UNROLL for (int i = 0; i < ROWS * A; i++)
                acc[i] = fma(load(at[i / A] + i % A * LT), g, acc[i]);
            CL_UNROLL for (int r = 0; r < ROWS; r++) {
                at[r] += x_pixel;
                CL_OPAQUE(at[r]);
            }
        }
    }
    CL_UNROLL for (int i = 0; i < ROWS * A; i++) store(dw + i / A * ROW + i % A * LT, acc[i]);
}

template <class P>
void conv2d_lanes_wgrad(const Arg* args, long item, Worker* worker) {
    using L = Lanes<P>;
    constexpr bool ADJACENT = P::DW == 1;
    constexpr i64 PIECES = ADJACENT ? 1 : P::S, RUN = ADJACENT ? P::S * P::IN : P::IN;
    constexpr i64 RUN_PADDED = round_up(RUN, P::A), ROW = PIECES * RUN_PADDED * L::PADDED;
    constexpr int RT = VECTOR_REGISTERS == 32 || P::RT * P::A <= 12 ? P::RT : 1;
    constexpr i64 CT = P::G * P::IN;
    const i64 N = args[3].integer, H = args[4].integer, W = args[5].integer;
    const i64 chunks = args[6].integer, strips = args[7].integer;
    const i64 out_rows = output_size(H, P::R, P::UH, P::PH, P::DH);
    const i64 Q = output_size(W, P::S, P::UW, P::PW, P::DW);
    f32* dw = (f32*)args[2].address + item * (P::R * ROW + L::PADDED);
    f32* db = dw + P::R * ROW;
    fill_zero(dw, P::R * ROW + L::PADDED);
    const i64 cols = (Q - 1) * P::UW + (P::S - 1) * P::DW + 1, x_line = cols * L::PIXEL;
    const i64 most = ceil_div(out_rows, strips);
    f32* staged = (f32*)worker->scratch;
    f32* staged_dy = staged + ((most - 1) * P::UH + (P::R - 1) * P::DH + 1) * cols *
                                  (L::PIXEL + round_up(CT, 16)) + P::A * L::PADDED;
    for (i64 unit = part_begin(N * strips, chunks, item);
         unit < part_begin(N * strips, chunks, item + 1); unit++) {
        const i64 n = unit / strips, strip = unit % strips;
        const i64 first = part_begin(out_rows, strips, strip);
        const i64 rows = part_begin(out_rows, strips, strip + 1) - first;
        stage_lanes<P, P::XROW>(staged, (const f32*)args[0].address + n * H * W * CT, H, W,
                                Window{first * P::UH - P::PH,
                                       (rows - 1) * P::UH + (P::R - 1) * P::DH + 1, -P::PW, cols});
        const f32* dy = (const f32*)args[1].address + n * out_rows * Q * L::TOTAL;
        if constexpr (P::YROW) {
            stage<true>(staged_dy, L::TOTAL, Image{dy, out_rows, Q, L::TOTAL, 0, L::TOTAL},
                        Window{first, rows, 0, Q});
            dy = staged_dy;
        } else {
            dy += first * Q * L::TOTAL;
        }
        for (i64 l = 0; l < L::TOTAL; l += LANES) {
            const i64 left = L::TOTAL - l;
            if constexpr (P::BIAS) {
                vec sum = load(db + l);
                for (i64 i = 0; i < rows * Q; i++) sum += load_tail(dy + i * L::TOTAL + l, left);
                store(db + l, sum);
            }
            for (i64 r = 0; r < P::R; r += RT)
                for (i64 piece = 0; piece < PIECES; piece++)
                    for (i64 t = 0; t < RUN_PADDED; t += P::A)
                        lanes_wgrad_tile<RT, P::A, L::PADDED, ROW>(
                            dw + r * ROW + (piece * RUN_PADDED + t) * L::PADDED + l,
                            staged + r * P::DH * x_line + piece * P::DW * L::PIXEL +
                                t * L::PADDED + l,
                            P::DH * x_line, P::UH * x_line, P::UW * L::PIXEL, dy + l, L::TOTAL,
                            left, rows, Q);
        }
    }
}

}  // namespace convloom
