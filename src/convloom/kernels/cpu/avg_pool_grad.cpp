// dx = sum over the windows that hold the cell of dy / cells counted. Images are NHWC.
//
// Arguments: dy, dx, H, W, P, Q (output size). An item is one input row of one image; vectors run
// along channels. Windows are walked from the last to the first: the order of their taps.
// Limit: one load and one multiply-add a tap.
#include "pool.h"

namespace convloom {

template <class P>
void avg_pool_grad(const Arg* args, long item, Worker*) {
    const i64 H = args[2].integer, W = args[3].integer;
    const i64 rows = args[4].integer, cols = args[5].integer;
    const i64 image = item / H, h = item % H;
    const f32* dy = static_cast<const f32*>(args[0].address) + image * rows * cols * P::C;
    f32* dx = static_cast<f32*>(args[1].address) + item * W * P::C;
    const Range p = windows_over<P::KH, P::SH, P::PH>(h, rows);
    for (i64 w = 0; w < W; ++w) {
        const Range q = windows_over<P::KW, P::SW, P::PW>(w, cols);
        fill_zero(dx + w * P::C, P::C);
        for (i64 i = p.last - 1; i >= p.first; --i) {
            const i64 high = cells_counted<P::KH, P::SH, P::PH, P::COUNT_PADDING>(i, H);
            for (i64 j = q.last - 1; j >= q.first; --j) {
                const i64 wide = cells_counted<P::KW, P::SW, P::PW, P::COUNT_PADDING>(j, W);
                const vec share = broadcast(1.0f / f32(high * wide));
                const f32* from = dy + (i * cols + j) * P::C;
                f32* to = dx + w * P::C;
                for (i64 c = 0; c < P::C; c += LANES) {
                    const i64 left = P::C - c;
                    const vec sum = fma(load_tail(from + c, left), share, load_tail(to + c, left));
                    store_tail(to + c, sum, left);
                }
            }
        }
    }
}

}  // namespace convloom
