// Input gradient of a convolution, NHWC, with a mask (activation.h) in the epilogue.
//
// The gradient is itself a convolution, of dy with the reversed filters. Under a stride the input
// pixels fall into UH*UW residue classes, each a stride-1 convolution with its own share of the
// taps (conv2d_core.h, Residue): no product with an inserted zero is ever made. Classes that no
// tap reaches become zero.
// Item: a strip of input rows (in units of the stride) of one image; the dy that it needs is staged
// with its zero border, or expanded from the gradient behind a 2x2 max-pool (POOL).
// Limit: 2*N*K*P*Q*C*R*S FLOPs; bytes dy, dx, mask and the packed filters once a strip.
// Arguments: dy, packed filters, mask, dx, index (0 where absent), H, W, strips.
#include "conv2d_core.h"

namespace convloom {

template <class P>
void conv2d_dgrad(const Arg* args, long item, Worker* worker) {
    using Shape = TileShape<P::KB, P::ROWS, P::PC>;
    constexpr int NV = Shape::vectors, ROWS = P::ROWS, PC = Shape::columns;
    constexpr i64 CT = P::C * P::G, KG = P::K / P::G, BLOCKS = ceil_div(P::C, P::KB);
    constexpr bool FULL = P::C % Shape::channels == 0 && !P::XROW;
    constexpr Reach ROW_REACH = reach(P::R, P::UH, P::PH, P::DH);
    constexpr Reach COL_REACH = reach(P::S, P::UW, P::PW, P::DW);
    const i64 H = args[5].integer, W = args[6].integer, strips = args[7].integer;
    const i64 out_rows = output_size(H, P::R, P::UH, P::PH, P::DH);
    const i64 out_cols = output_size(W, P::S, P::UW, P::PW, P::DW);
    const i64 units = ceil_div(H, P::UH), n = item / strips, strip = item % strips;
    const i64 first = part_begin(units, strips, strip), last = part_begin(units, strips, strip + 1);

    const Window window{first + ROW_REACH.low, last - first + ROW_REACH.high - ROW_REACH.low,
                        COL_REACH.low, ceil_div(W, P::UW) + COL_REACH.high - COL_REACH.low};
    f32* staged = (f32*)worker->scratch;
    const f32* dy = (const f32*)args[0].address;
    if constexpr (P::POOL) {
        const i64 plane = (out_rows / 2) * (out_cols / 2) * P::K;
        const Image image{dy + n * plane, out_rows / 2, out_cols / 2, P::K, 0, P::K};
        stage_unpooled<P::YROW>(staged, P::K, image, (const u8*)args[4].address + n * plane,
                                window);
    } else {
        const i64 plane = out_rows * out_cols * P::K;
        stage<P::YROW>(staged, P::K, Image{dy + n * plane, out_rows, out_cols, P::K, 0, P::K},
                       window);
    }

    const i64 y_row = window.cols * P::K;
    const i64 channel = P::XROW ? H * W : 1, pixel = P::XROW ? 1 : CT;
    const f32* packed = (const f32*)args[1].address;
    const f32* mask = P::MASK ? (const f32*)args[2].address + n * H * W * CT : nullptr;
    f32* dx = (f32*)args[3].address + n * H * W * CT;

    for (i64 a = 0; a < P::UH; a++)
        for (i64 b = 0; b < P::UW; b++) {
            const Residue row = residue_class(a, P::R, P::UH, P::PH, P::DH);
            const Residue col = residue_class(b, P::S, P::UW, P::PW, P::DW);
            const i64 end = min(last, ceil_div(H - row.first, P::UH));
            const i64 cols = ceil_div(W - col.first, P::UW);
            if (end <= first || cols <= 0) continue;
            const i64 taps_of = row.taps * col.taps;
            const bool adjacent = col.spread == 1 && P::G == 1;
            const Taps taps{row.taps, row.spread * y_row, adjacent ? 1 : col.taps,
                            col.spread * P::K, taps_of == 0 ? 0 : adjacent ? col.taps * KG : KG};
            const f32* filters = packed + (taps_before(a, P::R, P::UH, P::DH) * P::S +
                                           row.taps * taps_before(b, P::S, P::UW, P::DW)) *
                                              P::G * BLOCKS * KG * P::KB;
            const f32* y = staged + (row.offset - ROW_REACH.low) * y_row +
                           (col.offset - COL_REACH.low) * P::K;
            if (!taps_of) y = staged;
            const i64 origin = row.first * W * pixel + col.first * pixel;
            const i64 tiles = ceil_div(cols, PC);
            Target to{};
            to.row = P::UH * W * pixel;
            to.pixel = P::UW * pixel;
            to.channel = channel;
            for (i64 g = 0; g < P::G; g++)
                for (i64 c = 0; c < P::C; c += Shape::channels) {
                    const f32* w = filters + (g * BLOCKS + c / P::KB) * taps_of * KG * P::KB +
                                   c % P::KB;
                    to.left = P::C - c;
                    for (i64 u = first; u < end; u += ROWS) {
                        const i64 i = min(u, end - ROWS);
                        for (i64 t = 0; t < tiles; t++) {
                            const i64 j = min(t * PC, cols - PC);
                            vec acc[ROWS * PC][NV];
                            start(acc, nullptr, to.left);
                            accumulate<NV, ROWS, PC, P::K, P::KB>(
                                acc, y + (i - first) * y_row + j * P::K + g * KG, y_row, w, taps);
                            const i64 at = origin + i * to.row + j * to.pixel +
                                           (g * P::C + c) * channel;
                            to.data = dx + at;
                            finish<Masked<P>, FULL, NV, ROWS, PC>(acc, to,
                                                       P::MASK ? mask + at : nullptr);
                        }
                    }
                }
        }
}

}  // namespace convloom
