// m = x minus the mean of the window around it, over the part inside the map. NHWC.
//
// Arguments: x, m, channels, H, W. An item is a row of one image. Limit: size^2 loads an element.
#include "pixel_windows.h"

namespace convloom {

template <class P>
void contrast(const Arg* args, long item, Worker*) {
    const i64 channels = args[2].integer, H = args[3].integer, W = args[4].integer;
    const i64 h = item % H, image = item / H * H * W * channels;
    const f32* x = (const f32*)args[0].address + image;
    f32* m = (f32*)args[1].address + image;
    for (i64 w = 0; w < W; ++w) {
        const PixelWindow window = pixel_window<P::LOW, P::HIGH>(h, w, H, W);
        const i64 cells = (window.bottom - window.top) * (window.right - window.left);
        const i64 at = (h * W + w) * channels;
        for (i64 c = 0; c < channels; c += LANES) {
            const vec sum = window_total(x, window, W, channels, c, [](vec v) { return v; });
            const vec mean = sum / broadcast(f32(cells));
            store_tail(m + at + c, load_tail(x + at + c, channels - c) - mean, channels - c);
        }
    }
}

}  // namespace convloom
