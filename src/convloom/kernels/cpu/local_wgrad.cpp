// Filter gradients of a locally connected layer: images NHWC, filters KRSC.
//
// Item: one output pixel. Its patches and output gradients are staged for CHUNK images at a time,
// so that what is summed over images lies together; the register tile is four filters by two
// vectors of channels of one tap. Limit: 2*N*P*Q*K*C*R*S FLOPs; x is read once for each pixel.
// Arguments: x, dy, dw, N, H, W, P, Q.
#include "simd.h"

namespace convloom {

template <class P, int FILTERS>
CL_INLINE void local_wgrad_tile(f32* dw, i64 filter_step, const f32* patch, i64 patch_step,
                                const f32* dy, i64 images, i64 left, bool first) {
    constexpr int NV = 2;
    vec acc[FILTERS][NV];
    CL_UNROLL for (int k = 0; k < FILTERS; k++)
        CL_UNROLL for (int i = 0; i < NV; i++)
            acc[k][i] = first ? zero()
                              : load_tail(dw + k * filter_step + i * LANES, left - i * LANES);
    for (i64 n = 0; n < images; n++) {
        vec x[NV];
        CL_UNROLL for (int i = 0; i < NV; i++)
            x[i] = load_tail(patch + n * patch_step + i * LANES, left - i * LANES);
        CL_UNROLL for (int k = 0; k < FILTERS; k++) {
            const vec value = broadcast(dy[n * P::K + k]);
            CL_UNROLL for (int i = 0; i < NV; i++) acc[k][i] = fma(value, x[i], acc[k][i]);
        }
    }
    CL_UNROLL for (int k = 0; k < FILTERS; k++)
        CL_UNROLL for (int i = 0; i < NV; i++)
            store_tail(dw + k * filter_step + i * LANES, acc[k][i], left - i * LANES);
}

template <class P>
void local_wgrad(const Arg* args, long item, Worker* worker) {
    constexpr i64 CT = P::C * P::G, KG = P::K / P::G, TAPS = P::R * P::S;
    const i64 N = args[3].integer, H = args[4].integer, W = args[5].integer;
    const i64 rows = args[6].integer, cols = args[7].integer;
    const i64 p = item / cols, q = item % cols;
    const f32* x = (const f32*)args[0].address;
    const f32* dy = (const f32*)args[1].address + item * P::K;
    f32* dw = (f32*)args[2].address + item * P::K * TAPS * P::C;
    f32* patches = (f32*)worker->scratch;
    f32* gradients = patches + P::CHUNK * TAPS * CT;
    for (i64 first = 0; first < N; first += P::CHUNK) {
        const i64 images = min(P::CHUNK, N - first);
        for (i64 n = 0; n < images; n++) {
            copy(gradients + n * P::K, dy + (first + n) * rows * cols * P::K, P::K);
            for (i64 tap = 0; tap < TAPS; tap++) {
                const i64 h = p * P::UH + tap / P::S * P::DH - P::PH;
                const i64 v = q * P::UW + tap % P::S * P::DW - P::PW;
                f32* to = patches + (n * TAPS + tap) * CT;
                if (h < 0 || h >= H || v < 0 || v >= W)
                    fill_zero(to, CT);
                else
                    copy(to, x + (((first + n) * H + h) * W + v) * CT, CT);
            }
        }
        for (i64 g = 0; g < P::G; g++)
            for (i64 tap = 0; tap < TAPS; tap++)
                for (i64 c = 0; c < P::C; c += 2 * LANES) {
                    const f32* patch = patches + tap * CT + g * P::C + c;
                    f32* to = dw + (g * KG * TAPS + tap) * P::C + c;
                    const f32* from = gradients + g * KG;
                    i64 k = 0;
                    for (; k + 4 <= KG; k += 4)
                        local_wgrad_tile<P, 4>(to + k * TAPS * P::C, TAPS * P::C, patch, TAPS * CT,
                                               from + k, images, P::C - c, first == 0);
                    for (; k < KG; k++)
                        local_wgrad_tile<P, 1>(to + k * TAPS * P::C, TAPS * P::C, patch, TAPS * CT,
                                               from + k, images, P::C - c, first == 0);
                }
    }
}

}  // namespace convloom
