// y = sum over the taps of its row and column of weight * x, or `value` where no tap is inside:
// padding, resizing, nailbed, mirror, blur (axis_map.h). Images are NHWC.
//
// Arguments: x, y, H, W, P, Q (output size), value, five weights. An item is one output row of one
// image; vectors run along channels. Limit: memory; a load and a multiply-add a tap.
#include "axis_map.h"

namespace convloom {

template <class P>
void spatial_map(const Arg* args, long item, Worker*) {
    const i64 H = args[2].integer, W = args[3].integer;
    const RowMap<P> rows{H, args[4].integer};
    const ColMap<P> cols{W, args[5].integer};
    const Weights weights = weights_of(args + 7);
    const i64 image = item / rows.positions, p = item % rows.positions;
    const f32* x = static_cast<const f32*>(args[0].address) + image * H * W * P::C;
    f32* y = static_cast<f32*>(args[1].address) + item * cols.positions * P::C;
    constexpr i64 R = RowMap<P>::COUNT, S = ColMap<P>::COUNT;
    Tap row[R], col[S];
    for (i64 t = 0; t < R; ++t) row[t] = rows.tap(p, t, weights);
    for (i64 q = 0; q < cols.positions; ++q, y += P::C) {
        for (i64 u = 0; u < S; ++u) col[u] = cols.tap(q, u, weights);
        if constexpr (R == 1 && S == 1) {
            if (row[0].index >= 0 && col[0].index >= 0) {
                copy(y, x + (row[0].index * W + col[0].index) * P::C, P::C);
                continue;
            }
            for (i64 c = 0; c < P::C; ++c) y[c] = f32(args[6].real);
        } else {
            for (i64 c = 0; c < P::C; c += LANES) {
                const i64 left = P::C - c;
                vec sum = zero();
                for (i64 t = 0; t < R; ++t) {
                    if (row[t].index < 0) continue;
                    for (i64 u = 0; u < S; ++u) {
                        if (col[u].index < 0) continue;
                        const f32* from = x + (row[t].index * W + col[u].index) * P::C + c;
                        const vec weight = broadcast(row[t].weight * col[u].weight);
                        sum = fma(weight, load_tail(from, left), sum);
                    }
                }
                store_tail(y + c, sum, left);
            }
        }
    }
}

}  // namespace convloom
