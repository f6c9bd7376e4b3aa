// A 1x1 convolution of stride 1, or its input gradient, as a product over all pixels at once:
//     y[m, k] = bias[k] + sum over c of x[m, c] * w[c, k],   m over images and pixels.
// A convolution whose kernel is the whole input has this form too, with one "pixel" an image and
// C*H*W channels.
//
// Item: CHUNK pixels; nothing is staged. Vectors run along output channels.
// Limit: 2*M*C*K FLOPs; bytes x, y once and the packed filters once an item.
// Arguments: x, packed filters, bias, mask (0 where absent), y, M.
#include "conv2d_core.h"

namespace convloom {

template <class P, int PC>
CL_INLINE void pointwise_tile(const f32* x, const f32* w, const f32* bias, const f32* mask,
                              f32* y, i64 left) {
    using Shape = TileShape<P::KB, 1, P::PC>;
    constexpr int NV = Shape::vectors;
    constexpr bool FULL = P::K % Shape::channels == 0;
    vec acc[PC][NV];
    start(acc, bias, left);
    accumulate<NV, 1, PC, P::C, P::KB>(acc, x, 0, w, Taps{1, 0, 1, 0, P::C});
    finish<FULL, NV, 1, PC>(acc, Target{y, 0, P::K, 1, left}, P::RELU, mask);
}

template <class P>
void conv2d_pointwise(const Arg* args, long item, Worker*) {
    using Shape = TileShape<P::KB, 1, P::PC>;
    constexpr int PC = Shape::columns;
    const i64 first = item * P::CHUNK, pixels = min(P::CHUNK, args[5].integer - first);
    const f32* x = (const f32*)args[0].address + first * P::C;
    const f32* bias = (const f32*)args[2].address;
    const f32* mask = (const f32*)args[3].address + first * P::K;
    f32* y = (f32*)args[4].address + first * P::K;
    for (i64 k = 0; k < P::K; k += Shape::channels) {
        const f32* w = (const f32*)args[1].address + k / P::KB * P::C * P::KB + k % P::KB;
        const f32* b = P::BIAS ? bias + k : nullptr;
        auto tile = [&]<int WIDTH>(i64 m) __attribute__((always_inline)) {
            pointwise_tile<P, WIDTH>(x + m * P::C, w, b, P::MASK ? mask + m * P::K + k : nullptr,
                                     y + m * P::K + k, P::K - k);
        };
        if (pixels >= PC)
            for (i64 m = 0; m < pixels; m += PC) tile.template operator()<PC>(min(m, pixels - PC));
        else
            for (i64 m = 0; m < pixels; m++) tile.template operator()<1>(m);
    }
}

}  // namespace convloom
