// Locally connected layer, NHWC: every output pixel has filters of its own.
//
// Item: one output pixel of all images, so that its filters stay in cache. The register tile is PC
// images by KB filters (conv2d_core.h); images are IMAGE floats and their rows ROW floats apart,
// with their padding around them. Filters are packed as those of a convolution with a group for
// every pixel and group. Limit: 2*N*P*Q*K*C*R*S FLOPs; bytes of the filters, once.
// Arguments: x, packed filters, y, N, Q, output pixels.
#include "conv2d_core.h"

namespace convloom {

template <class P>
void local_fprop(const Arg* args, long item, Worker*) {
    using Shape = TileShape<P::KB, 1, P::PC>;
    constexpr int NV = Shape::vectors, PC = Shape::columns;
    constexpr i64 CT = P::C * P::G, KG = P::K / P::G, BLOCKS = ceil_div(KG, P::KB);
    constexpr bool FULL = KG % Shape::channels == 0, ADJACENT = P::DW == 1 && P::G == 1;
    const i64 N = args[3].integer, cols = args[4].integer, pixels = args[5].integer;
    const i64 p = item / cols, q = item % cols;
    const f32* x = (const f32*)args[0].address + p * P::UH * P::ROW + q * P::UW * CT;
    const Taps taps{P::R, P::DH * P::ROW, ADJACENT ? 1 : P::S, P::DW * CT,
                    ADJACENT ? P::S * P::C : P::C};
    f32* y = (f32*)args[2].address + item * P::K;
    Target to{};
    to.pixel = pixels * P::K;
    to.channel = 1;
    for (i64 g = 0; g < P::G; g++)
        for (i64 k = 0; k < KG; k += Shape::channels) {
            const f32* w = (const f32*)args[1].address + k % P::KB +
                           ((item * P::G + g) * BLOCKS + k / P::KB) * P::R * P::S * P::C * P::KB;
            to.left = KG - k;
            auto tile = [&]<int IMAGES>(i64 n) __attribute__((always_inline)) {
                vec acc[IMAGES][NV];
                start(acc, nullptr, to.left);
                accumulate<NV, 1, IMAGES, P::IMAGE, P::KB>(acc, x + n * P::IMAGE + g * P::C, 0, w,
                                                           taps);
                to.data = y + n * to.pixel + g * KG + k;
                finish<Unchanged, FULL, NV, 1, IMAGES>(acc, to, nullptr);
            };
            i64 n = 0;
            for (; n + PC <= N; n += PC) tile.template operator()<PC>(n);
            if (n > 0 && n < N)
                tile.template operator()<PC>(N - PC);  // overlaps its neighbour: same values
            else
                for (; n < N; n++) tile.template operator()<1>(n);
        }
}

}  // namespace convloom
