// dx = sum of dy over the windows that the cell won; with TIES over those whose maximum it equals.
// Images are NHWC.
//
// Arguments: dy, index (with TIES the input x), output y (0 without TIES), dx, H, W, P, Q (size of
// dy). An item is one input row of one image: it gathers from the few windows that hold a cell,
// in scan order, so no two items meet and sums have one order. Vectors run along channels.
// Limit: two loads (with TIES three), a compare and a select for each window over a cell.
#include "pool.h"

namespace convloom {

template <class P>
void max_pool_grad(const Arg* args, long item, Worker*) {
    const i64 H = args[4].integer, W = args[5].integer;
    const RowWindows<P> rows{H, args[6].integer};
    const ColWindows<P> cols{W, args[7].integer};
    const i64 image = item / H, h = item % H;
    const i64 windows = image * rows.positions * cols.positions * P::C;
    const f32* dy = static_cast<const f32*>(args[0].address) + windows;
    const i32* index = static_cast<const i32*>(args[1].address) + windows;
    const f32* x = static_cast<const f32*>(args[1].address) + item * W * P::C;
    const f32* y = static_cast<const f32*>(args[2].address) + windows;
    f32* dx = static_cast<f32*>(args[3].address) + item * W * P::C;
    const Range p = rows.over(h);
    for (i64 w = 0; w < W; ++w) {
        const Range q = cols.over(w);
        const ivec here = broadcast_i32(i32(h * W + w));
        for (i64 c = 0; c < P::C; c += LANES) {
            const i64 left = P::C - c;
            vec sum = zero(), value = zero();
            if constexpr (P::TIES) value = load_tail(x + w * P::C + c, left);
            for (i64 i = p.first; i < p.last; ++i) {
                for (i64 j = q.first; j < q.last; ++j) {
                    const i64 at = (i * cols.positions + j) * P::C + c;
                    ivec won;
                    if constexpr (P::TIES) {
                        if (!rows.meets(i, h) || !cols.meets(j, w)) continue;
                        const vec best = load_tail(y + at, left);
                        won = (value == best) | ((value != value) & (best != best));
                    } else {
                        won = load_i32_tail(index + at, left) == here;
                    }
                    sum += select(won, load_tail(dy + at, left), zero());
                }
            }
            store_tail(dx + w * P::C + c, sum, left);
        }
    }
}

}  // namespace convloom
