// dx = sum over the windows that hold the cell of dy / cells counted (or DIVISOR, where that is not
// 0). Images are NHWC.
//
// Arguments: dy, dx, H, W, P, Q (output size). An item is one input row of one image; vectors run
// along channels. Windows are walked from the last to the first: the order of their taps.
// Limit: one load and one multiply-add a tap.
#include "pool.h"

namespace convloom {

template <class P>
void avg_pool_grad(const Arg* args, long item, Worker*) {
    const i64 H = args[2].integer, W = args[3].integer;
    const RowWindows<P> rows{H, args[4].integer};
    const ColWindows<P> cols{W, args[5].integer};
    const i64 image = item / H, h = item % H;
    const f32* dy = static_cast<const f32*>(args[0].address) +
                    image * rows.positions * cols.positions * P::C;
    f32* dx = static_cast<f32*>(args[1].address) + item * W * P::C;
    const Range p = rows.over(h);
    for (i64 w = 0; w < W; ++w) {
        const Range q = cols.over(w);
        f32* to = dx + w * P::C;
        if (p.last == p.first || q.last == q.first) fill_zero(to, P::C);
        for (i64 i = p.last - 1; i >= p.first; --i) {
            const i64 high = rows.template counted<P::COUNT_PADDING>(i);
            for (i64 j = q.last - 1; j >= q.first; --j) {
                const i64 wide = cols.template counted<P::COUNT_PADDING>(j);
                const vec share = broadcast(1.0f / f32(P::DIVISOR ? P::DIVISOR : high * wide));
                const bool first = i == p.last - 1 && j == q.last - 1;
                const f32* from = dy + (i * cols.positions + j) * P::C;
                for (i64 c = 0; c < P::C; c += LANES) {
                    const i64 left = P::C - c;
                    const vec before = first ? zero() : load_tail(to + c, left);
                    store_tail(to + c, fma(load_tail(from + c, left), share, before), left);
                }
            }
        }
    }
}

}  // namespace convloom
