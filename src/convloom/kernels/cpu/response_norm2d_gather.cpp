// Second half of the gradient: dx -= factor m (sum of t over the windows that hold the pixel). NHWC.
//
// Arguments: m, t, dx, channels, H, W, factor. An item is a row of one image.
// Limit: size^2 loads an element.
#include "pixel_windows.h"

namespace convloom {

template <class P>
void response_norm2d_gather(const Arg* args, long item, Worker*) {
    const i64 channels = args[3].integer, H = args[4].integer, W = args[5].integer;
    const i64 h = item % H, image = item / H * H * W * channels;
    const f32* m = (const f32*)args[0].address + image;
    const f32* t = (const f32*)args[1].address + image;
    f32* dx = (f32*)args[2].address + image;
    const vec factor = broadcast(f32(args[6].real));
    for (i64 w = 0; w < W; ++w) {
        const PixelWindow window = pixel_window<P::HIGH, P::LOW>(h, w, H, W);
        for (i64 c = 0; c < channels; c += LANES) {
            const i64 at = (h * W + w) * channels + c, left = channels - c;
            const vec sum = window_total(t, window, W, channels, c, [](vec v) { return v; });
            const vec own = factor * load_tail(m + at, left);
            store_tail(dx + at, load_tail(dx + at, left) - own * sum, left);
        }
    }
}

}  // namespace convloom
