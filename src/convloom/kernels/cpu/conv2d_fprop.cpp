// Convolution, NHWC, with bias, ReLU and 2x2 max-pool in the epilogue.
//
// Item: a strip of output rows of one image. Padded, NCHW (XROW) input is staged into scratch
// first; otherwise it is read in place. Vectors run along output channels. A strip walks blocks of
// KB output channels outermost, so that a block's packed filters stay in cache over its pixels.
// Limit: 2*N*K*P*Q*C*R*S FLOPs; bytes x, y and the packed filters once a strip.
// Arguments: x, packed filters, bias, y, index (0 where absent), H, W, strips.
#include "conv2d_core.h"

namespace convloom {

template <class P>
void conv2d_fprop(const Arg* args, long item, Worker* worker) {
    using Shape = TileShape<P::KB, P::ROWS, P::PC>;
    constexpr int NV = Shape::vectors, ROWS = P::ROWS, PC = Shape::columns;
    constexpr i64 CT = P::C * P::G, KG = P::K / P::G, BLOCKS = ceil_div(KG, P::KB);
    constexpr int POOL = P::POOL ? 2 : 1;
    constexpr bool FULL = KG % Shape::channels == 0 && !P::YROW;
    constexpr bool ADJACENT = P::DW == 1 && P::G == 1;
    const i64 H = args[5].integer, W = args[6].integer, strips = args[7].integer;
    const i64 rows = output_size(H, P::R, P::UH, P::PH, P::DH) / POOL;
    const i64 cols = output_size(W, P::S, P::UW, P::PW, P::DW) / POOL;
    const i64 n = item / strips, strip = item % strips;
    const i64 first = part_begin(rows, strips, strip), last = part_begin(rows, strips, strip + 1);

    const f32* x = (const f32*)args[0].address + n * H * W * CT;
    i64 x_row = W * CT;
    if constexpr (P::STAGED) {
        const Window window{first * POOL * P::UH - P::PH,
                            ((last - first) * POOL - 1) * P::UH + (P::R - 1) * P::DH + 1,
                            -P::PW, W + 2 * P::PW};
        stage<P::XROW>((f32*)worker->scratch, CT, Image{x, H, W, CT, 0, CT}, window);
        x = (const f32*)worker->scratch;
        x_row = window.cols * CT;
    } else {
        x += first * POOL * P::UH * x_row;
    }

    const Taps taps{P::R, P::DH * x_row, ADJACENT ? 1 : P::S, P::DW * CT,
                    ADJACENT ? P::S * P::C : P::C};
    const i64 plane = rows * cols;
    Target to{};
    to.channel = P::YROW ? plane : 1;
    to.pixel = P::YROW ? 1 : P::K;
    to.row = cols * to.pixel;
    const f32* packed = (const f32*)args[1].address;
    const f32* bias = (const f32*)args[2].address;
    f32* y = (f32*)args[3].address + n * plane * P::K;
    u8* index = (u8*)args[4].address + n * plane * P::K;
    // Units of the loops: output rows and columns after the pool.
    constexpr i64 TILE_ROWS = ROWS / POOL, TILE_COLS = PC / POOL;
    const i64 tiles = ceil_div(cols, TILE_COLS);

    for (i64 g = 0; g < P::G; g++)
        for (i64 k = 0; k < KG; k += Shape::channels) {
            const f32* w = packed + (g * BLOCKS + k / P::KB) * P::R * P::S * P::C * P::KB +
                           k % P::KB;
            to.left = KG - k;
            const i64 channel = (g * KG + k) * to.channel;
            for (i64 u = first; u < last; u += TILE_ROWS) {
                const i64 p = min(u, last - TILE_ROWS);  // the last tile overlaps: same values
                for (i64 t = 0; t < tiles; t++) {
                    const i64 q = min(t * TILE_COLS, cols - TILE_COLS);
                    vec acc[ROWS * PC][NV];
                    start(acc, P::BIAS ? bias + g * KG + k : nullptr, to.left);
                    accumulate<NV, ROWS, PC, P::UW * CT, P::KB>(
                        acc,
                        x + (p - first) * POOL * P::UH * x_row + q * POOL * P::UW * CT + g * P::C,
                        P::UH * x_row, w, taps);
                    const i64 at = channel + p * to.row + q * to.pixel;
                    to.data = y + at;
                    if constexpr (P::POOL)
                        finish_pooled<FULL, NV, PC>(acc, to, index + at, P::ACT == RELU);
                    else
                        finish<Activated<P>, FULL, NV, ROWS, PC>(acc, to, nullptr);
                }
            }
        }
}

}  // namespace convloom
