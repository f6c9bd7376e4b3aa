// y = x (k + scale * (sum of m^2 over neighbouring pixels))^-beta; m is x, or its contrast. NHWC.
//
// Arguments: x, m, y, channels, H, W, k, scale, beta. An item is a row of one image.
// Limit: size^2 loads an element.
#include "pixel_windows.h"
#include "response.h"

namespace convloom {

template <class P>
void response_norm2d(const Arg* args, long item, Worker*) {
    const i64 channels = args[3].integer, H = args[4].integer, W = args[5].integer;
    const i64 h = item % H, image = item / H * H * W * channels;
    const f32* x = (const f32*)args[0].address + image;
    const f32* m = (const f32*)args[1].address + image;
    f32* y = (f32*)args[2].address + image;
    const Response response(args + 6);
    for (i64 w = 0; w < W; ++w) {
        const PixelWindow window = pixel_window<P::LOW, P::HIGH>(h, w, H, W);
        const i64 at = (h * W + w) * channels;
        for (i64 c = 0; c < channels; c += LANES) {
            const vec sum = window_total(m, window, W, channels, c, [](vec v) { return v * v; });
            const vec p = response.factor(response.denominator(sum));
            store_tail(y + at + c, load_tail(x + at + c, channels - c) * p, channels - c);
        }
    }
}

}  // namespace convloom
