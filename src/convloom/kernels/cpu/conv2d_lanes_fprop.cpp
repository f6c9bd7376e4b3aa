// Convolution of many small groups, NHWC, with bias and ReLU (conv2d_lanes.h: lanes are filters).
//
// Item: a strip of output rows of one image. Limit: bytes x and y; 2*N*K*P*Q*IN*R*S FLOPs, with
// one load an FMA unless taps of a row share it.
// Arguments: x, packed filters, bias (0 where absent), y, H, W, strips.
#include "conv2d_lanes.h"

namespace convloom {

template <class P>
void conv2d_lanes_fprop(const Arg* args, long item, Worker* worker) {
    using L = Lanes<P>;
    constexpr int PC = VECTOR_REGISTERS == 32 || P::PC < 8 ? P::PC : 8;
    constexpr int COLS = P::DW == 1 && P::S <= 5 ? P::S : 0;
    constexpr i64 CT = P::G * P::IN;
    const i64 H = args[4].integer, W = args[5].integer, strips = args[6].integer;
    const i64 rows = output_size(H, P::R, P::UH, P::PH, P::DH);
    const i64 cols = output_size(W, P::S, P::UW, P::PW, P::DW);
    const i64 n = item / strips, strip = item % strips;
    const i64 first = part_begin(rows, strips, strip), last = part_begin(rows, strips, strip + 1);

    const Window window{first * P::UH - P::PH, (last - first - 1) * P::UH + (P::R - 1) * P::DH + 1,
                        -P::PW, W + 2 * P::PW};
    const f32* x = (const f32*)worker->scratch;
    stage_lanes<P, P::XROW>((f32*)worker->scratch, (const f32*)args[0].address + n * H * W * CT, H,
                            W, window);
    const i64 x_row = window.cols * L::PIXEL;
    const Taps taps{P::R, P::DH * x_row, P::S, P::DW * L::PIXEL, P::IN};
    const f32* w = (const f32*)args[1].address;
    const f32* bias = (const f32*)args[2].address;
    const i64 plane = rows * cols;
    f32* y = (f32*)args[3].address + n * plane * L::TOTAL;
    Target to{};
    to.channel = P::YROW ? plane : 1;
    to.pixel = P::YROW ? 1 : L::TOTAL;
    for (i64 l = 0; l < L::TOTAL; l += LANES)
        for (i64 p = first; p < last; p++)
            for (i64 t = 0; t < cols; t += PC) {
                const i64 q = min(t, cols - PC);
                to.left = L::TOTAL - l;
                vec acc[PC][1];
                start(acc, P::BIAS ? bias + l : nullptr, to.left);
                accumulate_lanes<P, PC, P::UW, COLS>(
                    acc, x + (p - first) * P::UH * x_row + q * P::UW * L::PIXEL + l, w + l, taps);
                to.data = y + l * to.channel + (p * cols + q) * to.pixel;
                finish_lanes<Activated<P>>(acc, to, nullptr);
            }
}

}  // namespace convloom
