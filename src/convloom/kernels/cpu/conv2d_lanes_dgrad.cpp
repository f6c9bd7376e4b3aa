// Input gradient of a convolution of many small groups (conv2d_lanes.h: lanes are channels), with
// a mask (activation.h). Residue classes of the stride as in conv2d_dgrad.cpp.
//
// Item: a strip of input rows, in units of the stride, of one image. Limit: bytes dy, mask and dx.
// Arguments: dy, packed filters, mask (0 where absent), dx, H, W, strips.
#include "conv2d_lanes.h"

namespace convloom {

template <class P>
void conv2d_lanes_dgrad(const Arg* args, long item, Worker* worker) {
    using L = Lanes<P>;
    constexpr int PC = VECTOR_REGISTERS == 32 || P::PC < 8 ? P::PC : 8;
    constexpr int COLS = P::UW == 1 && P::DW == 1 && P::S <= 5 ? P::S : 0;
    constexpr i64 KT = P::G * P::IN;
    constexpr Reach ROW_REACH = reach(P::R, P::UH, P::PH, P::DH);
    constexpr Reach COL_REACH = reach(P::S, P::UW, P::PW, P::DW);
    const i64 H = args[4].integer, W = args[5].integer, strips = args[6].integer;
    const i64 out_rows = output_size(H, P::R, P::UH, P::PH, P::DH);
    const i64 out_cols = output_size(W, P::S, P::UW, P::PW, P::DW);
    const i64 units = ceil_div(H, P::UH), n = item / strips, strip = item % strips;
    const i64 first = part_begin(units, strips, strip), last = part_begin(units, strips, strip + 1);

    const Window window{first + ROW_REACH.low, last - first + ROW_REACH.high - ROW_REACH.low,
                        COL_REACH.low, ceil_div(W, P::UW) + COL_REACH.high - COL_REACH.low};
    f32* staged = (f32*)worker->scratch;
    stage_lanes<P, P::YROW>(staged, (const f32*)args[0].address + n * out_rows * out_cols * KT,
                            out_rows, out_cols, window);
    const i64 y_row = window.cols * L::PIXEL;
    Target to{};
    to.channel = P::XROW ? H * W : 1;
    const i64 pixel = P::XROW ? 1 : L::TOTAL;
    to.pixel = P::UW * pixel;
    const f32* packed = (const f32*)args[1].address;
    const f32* mask = (const f32*)args[2].address + n * H * W * L::TOTAL;
    f32* dx = (f32*)args[3].address + n * H * W * L::TOTAL;
    for (i64 a = 0; a < P::UH; a++)
        for (i64 b = 0; b < P::UW; b++) {
            const Residue row = residue_class(a, P::R, P::UH, P::PH, P::DH);
            const Residue col = residue_class(b, P::S, P::UW, P::PW, P::DW);
            const i64 end = min(last, ceil_div(H - row.first, P::UH));
            const i64 cols = ceil_div(W - col.first, P::UW);
            if (end <= first || cols <= 0) continue;
            const bool empty = row.taps * col.taps == 0;
            const Taps taps{empty ? 0 : row.taps, row.spread * y_row, col.taps,
                            col.spread * L::PIXEL, P::IN};
            const f32* w = packed + (taps_before(a, P::R, P::UH, P::DH) * P::S +
                                     row.taps * taps_before(b, P::S, P::UW, P::DW)) *
                                        L::PIXEL;
            const f32* y = empty ? staged
                                 : staged + (row.offset - ROW_REACH.low) * y_row +
                                       (col.offset - COL_REACH.low) * L::PIXEL;
            for (i64 l = 0; l < L::TOTAL; l += LANES)
                for (i64 i = first; i < end; i++)
                    for (i64 t = 0; t < cols; t += PC) {
                        const i64 j = min(t, cols - PC);
                        to.left = L::TOTAL - l;
                        vec acc[PC][1];
                        start(acc, nullptr, to.left);
                        accumulate_lanes<P, PC, 1, COLS>(
                            acc, y + (i - first) * y_row + j * L::PIXEL + l, w + l, taps);
                        const i64 at = l * to.channel + (row.first + i * P::UH) * W * pixel +
                                       (col.first + j * P::UW) * pixel;
                        to.data = dx + at;
                        finish_lanes<Masked<P>>(acc, to, P::MASK ? mask + at : nullptr);
                    }
        }
}

}  // namespace convloom
