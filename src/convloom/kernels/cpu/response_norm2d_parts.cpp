// First half of the gradient: dx = dy d^-beta and t = dy x d^(-beta-1), d as in response_norm2d. NHWC.
//
// Arguments: dy, x, m, dx, t, channels, H, W, k, scale, beta. An item is a row of one image.
// Limit: size^2 loads an element.
#include "pixel_windows.h"
#include "response.h"

namespace convloom {

template <class P>
void response_norm2d_parts(const Arg* args, long item, Worker*) {
    const i64 channels = args[5].integer, H = args[6].integer, W = args[7].integer;
    const i64 h = item % H, image = item / H * H * W * channels;
    const f32* dy = (const f32*)args[0].address + image;
    const f32* x = (const f32*)args[1].address + image;
    const f32* m = (const f32*)args[2].address + image;
    f32* dx = (f32*)args[3].address + image;
    f32* t = (f32*)args[4].address + image;
    const Response response(args + 8);
    for (i64 w = 0; w < W; ++w) {
        const PixelWindow window = pixel_window<P::LOW, P::HIGH>(h, w, H, W);
        for (i64 c = 0; c < channels; c += LANES) {
            const i64 at = (h * W + w) * channels + c, left = channels - c;
            const vec sum = window_total(m, window, W, channels, c, [](vec v) { return v * v; });
            const vec d = response.denominator(sum);
            const vec g = load_tail(dy + at, left) * response.factor(d);
            store_tail(dx + at, g, left);
            store_tail(t + at, g * load_tail(x + at, left) / d, left);
        }
    }
}

}  // namespace convloom
