// Input gradient of a locally connected layer: images NHWC, filters KRSC.
//
// Item: four images, which walk all output pixels together, so that a filter read serves four. At
// each tap inside the image, dx += dy times the pixel's filters: vectors run along channels.
// Limit: bytes of the filters, once an item; 2*N*P*Q*K*C*R*S FLOPs.
// Arguments: dy, w, dx, N, H, W, P, Q.
#include "simd.h"

namespace convloom {

constexpr int TOGETHER = 4;

template <class P, int IMAGES>
CL_INLINE void local_dgrad_images(const f32* dy, const f32* w, f32* dx, i64 H, i64 W, i64 rows,
                                  i64 cols) {
    constexpr i64 CT = P::C * P::G, KG = P::K / P::G, FILTER = P::R * P::S * P::C;
    constexpr int NV = 2;
    const i64 y_image = rows * cols * P::K, x_image = H * W * CT;
    fill_zero(dx, IMAGES * x_image);
    for (i64 m = 0; m < rows * cols; m++)
        for (i64 tap = 0; tap < P::R * P::S; tap++) {
            const i64 h = m / cols * P::UH + tap / P::S * P::DH - P::PH;
            const i64 v = m % cols * P::UW + tap % P::S * P::DW - P::PW;
            if (h < 0 || h >= H || v < 0 || v >= W) continue;
            for (i64 g = 0; g < P::G; g++)
                for (i64 c = 0; c < P::C; c += NV * LANES) {
                    const f32* from = w + (m * P::K + g * KG) * FILTER + tap * P::C + c;
                    const f32* gradient = dy + m * P::K + g * KG;
                    const i64 left = P::C - c;
                    vec acc[IMAGES][NV];
                    CL_UNROLL for (int n = 0; n < IMAGES; n++)
                        CL_UNROLL for (int i = 0; i < NV; i++) acc[n][i] = zero();
                    for (i64 k = 0; k < KG; k++) {
                        vec filter[NV];
                        CL_UNROLL for (int i = 0; i < NV; i++)
                            filter[i] = load_tail(from + k * FILTER + i * LANES, left - i * LANES);
                        CL_UNROLL for (int n = 0; n < IMAGES; n++) {
                            const vec value = broadcast(gradient[n * y_image + k]);
                            CL_UNROLL for (int i = 0; i < NV; i++)
                                acc[n][i] = fma(value, filter[i], acc[n][i]);
                        }
                    }
                    f32* to = dx + (h * W + v) * CT + g * P::C + c;
                    CL_UNROLL for (int n = 0; n < IMAGES; n++)
                        CL_UNROLL for (int i = 0; i < NV; i++) {
                            f32* at = to + n * x_image + i * LANES;
                            const i64 rest = left - i * LANES;
                            store_tail(at, load_tail(at, rest) + acc[n][i], rest);
                        }
                }
        }
}

template <class P>
void local_dgrad(const Arg* args, long item, Worker*) {
    const i64 N = args[3].integer, H = args[4].integer, W = args[5].integer;
    const i64 rows = args[6].integer, cols = args[7].integer, first = item * TOGETHER;
    const f32* dy = (const f32*)args[0].address + first * rows * cols * P::K;
    const f32* w = (const f32*)args[1].address;
    f32* dx = (f32*)args[2].address + first * H * W * P::C * P::G;
    if (first + TOGETHER <= N) {
        local_dgrad_images<P, TOGETHER>(dy, w, dx, H, W, rows, cols);
        return;
    }
    for (i64 n = 0; n < N - first; n++)
        local_dgrad_images<P, 1>(dy + n * rows * cols * P::K, w, dx + n * H * W * P::C * P::G, H,
                                 W, rows, cols);
}

}  // namespace convloom
