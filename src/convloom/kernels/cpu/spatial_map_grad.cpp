// dx = sum over the outputs with a tap at the input of weight * dy: the gradient of spatial_map.
// Images are NHWC.
//
// Arguments: dy, dx, H, W, P, Q (size of dy), five weights. An item is one input row of one image:
// it gathers, so no two items meet. Vectors run along channels.
// Limit: memory; a load and a multiply-add a tap, and the search for the taps.
#include "axis_map.h"

namespace convloom {

template <long COUNT>
CL_INLINE void add_scaled(f32* to, const f32* from, vec weight) {
    for (i64 c = 0; c < COUNT; c += LANES) {
        const i64 left = COUNT - c;
        store_tail(to + c, fma(weight, load_tail(from + c, left), load_tail(to + c, left)), left);
    }
}

template <class P>
void spatial_map_grad(const Arg* args, long item, Worker*) {
    const i64 H = args[2].integer, W = args[3].integer;
    const RowMap<P> rows{H, args[4].integer};
    const ColMap<P> cols{W, args[5].integer};
    const Weights weights = weights_of(args + 6);
    const i64 image = item / H, h = item % H;
    const f32* dy = static_cast<const f32*>(args[0].address) +
                    image * rows.positions * cols.positions * P::C;
    f32* dx = static_cast<f32*>(args[1].address) + item * W * P::C;
    const Range p = rows.over(h);
    fill_zero(dx, W * P::C);
    for (i64 i = p.first; i < p.last; ++i)
        for (i64 t = 0; t < RowMap<P>::COUNT; ++t) {
            const Tap row = rows.tap(i, t, weights);
            if (row.index != h) continue;
            for (i64 w = 0; w < W; ++w) {
                const Range q = cols.over(w);
                for (i64 j = q.first; j < q.last; ++j)
                    for (i64 u = 0; u < ColMap<P>::COUNT; ++u) {
                        const Tap col = cols.tap(j, u, weights);
                        if (col.index != w) continue;
                        const f32* from = dy + (i * cols.positions + j) * P::C;
                        add_scaled<P::C>(dx + w * P::C, from, broadcast(row.weight * col.weight));
                    }
            }
        }
}

}  // namespace convloom
