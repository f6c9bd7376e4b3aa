// A 1x1 convolution of stride 1, or its input gradient, as a product over all pixels at once:
//     y[m, k] = bias[k] + sum over c of x[m, c] * w[c, k],   m over images and pixels.
// A convolution whose kernel is the whole input has this form too, with one "pixel" an image and
// C*H*W channels.
//
// Item: CHUNK pixels. Vectors run along output channels. Channels go by in blocks
// of BLOCK, between which sums wait in y, so that a block of x and of filters stays in cache; the
// order of a sum is that of the channels all the same. Where the pixels of a tile would fall into one
// set of the cache (channels a multiple of a large power of two), the block of x is staged (STAGED).
// Limit: 2*M*C*K FLOPs; bytes x, y once and the packed filters once an item.
// Arguments: x, packed filters, bias, mask (0 where absent), y, M.
#include "conv2d_core.h"

namespace convloom {

// One tile over `channels` of the input, from its `start` to its end; the last one finishes y.
struct Depth {
    i64 channels;
    bool first, last;
};

// Distance of neighbouring pixels: staged ones are a vector apart from a power of two.
template <class P>
constexpr int pointwise_step() {
    return P::STAGED ? P::BLOCK + 16 : P::C;
}

template <class P, int PC>
CL_INLINE void pointwise_tile(const f32* x, const f32* w, const f32* bias, const f32* mask,
                              f32* y, i64 left, const Depth& depth) {
    using Shape = TileShape<P::KB, 1, P::PC>;
    constexpr int NV = Shape::vectors;
    constexpr bool FULL = P::K % Shape::channels == 0;
    vec acc[PC][NV];
    if (FULL && !depth.first) {
        CL_UNROLL for (int p = 0; p < PC; p++)
            CL_UNROLL for (int v = 0; v < NV; v++) acc[p][v] = load(y + p * P::K + v * LANES);
    } else {
        start(acc, bias, left);
    }
    accumulate<NV, 1, PC, pointwise_step<P>(), P::KB>(acc, x, 0, w, Taps{1, 0, 1, 0, depth.channels});
    const Target to{y, 0, P::K, 1, left};
    if (FULL && !depth.last)
        finish<Unchanged, true, NV, 1, PC>(acc, to, nullptr);
    else
        finish<ActivatedOrMasked<P>, FULL, NV, 1, PC>(acc, to, mask);
}

template <class P>
void conv2d_pointwise(const Arg* args, long item, Worker* worker) {
    using Shape = TileShape<P::KB, 1, P::PC>;
    constexpr int PC = Shape::columns;
    constexpr i64 BLOCK = P::K % Shape::channels == 0 ? P::BLOCK : P::C;
    constexpr int STEP = pointwise_step<P>();
    const i64 first = item * P::CHUNK, pixels = min(P::CHUNK, args[5].integer - first);
    const f32* x = (const f32*)args[0].address + first * P::C;
    const f32* bias = (const f32*)args[2].address;
    const f32* mask = (const f32*)args[3].address + first * P::K;
    f32* y = (f32*)args[4].address + first * P::K;
    for (i64 c = 0; c < P::C; c += BLOCK) {
        const Depth depth{min(BLOCK, P::C - c), c == 0, c + BLOCK >= P::C};
        const f32* from = x + c;
        if constexpr (P::STAGED) {
            f32* staged = (f32*)worker->scratch;
            for (i64 m = 0; m < pixels; m++) copy(staged + m * STEP, from + m * P::C, depth.channels);
            from = staged;
        }
        for (i64 k = 0; k < P::K; k += Shape::channels) {
            const f32* w = (const f32*)args[1].address + (k / P::KB * P::C + c) * P::KB + k % P::KB;
            const f32* b = P::BIAS ? bias + k : nullptr;
            auto tile = [&]<int WIDTH>(i64 m) __attribute__((always_inline)) {
                pointwise_tile<P, WIDTH>(from + m * STEP, w, b,
                                         P::MASK ? mask + m * P::K + k : nullptr,
                                         y + m * P::K + k, P::K - k, depth);
            };
            // A tile that overlaps its neighbour would add to sums twice: the rest goes singly.
            i64 m = 0;
            for (; m + PC <= pixels; m += PC) tile.template operator()<PC>(m);
            if (BLOCK == P::C && m > 0 && m < pixels)
                tile.template operator()<PC>(pixels - PC);
            else
                for (; m < pixels; m++) tile.template operator()<1>(m);
        }
    }
}

}  // namespace convloom
