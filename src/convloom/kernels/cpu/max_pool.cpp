// y = greatest element of each window, index = its h * W + w in the plane. Images are NHWC.
//
// Arguments: x, y, index (0 unless INDEX), H, W, P, Q (output size). An item is one output row of
// one image; vectors run along channels. The first of equal elements in scan order wins; NaN beats
// every number and the last NaN wins, as in torch.nn.MaxPool2d. With MAGNITUDE the greatest magnitude
// wins, the last of equal ones.
// Limit: one load and two selects a tap; lanes idle where C is below LANES.
#include "pool.h"

namespace convloom {

CL_INLINE vec magnitude(vec x) { return select(x < zero(), -x, x); }

// Where a candidate replaces the best so far by magnitude: at least as large, or NaN.
CL_INLINE ivec outweighs(vec candidate, vec best) {
    return (magnitude(candidate) >= magnitude(best)) | (candidate != candidate);
}

template <class P>
void max_pool(const Arg* args, long item, Worker*) {
    const i64 H = args[3].integer, W = args[4].integer;
    const RowWindows<P> rows{H, args[5].integer};
    const ColWindows<P> cols{W, args[6].integer};
    const i64 image = item / rows.positions, p = item % rows.positions;
    const f32* x = static_cast<const f32*>(args[0].address) + image * H * W * P::C;
    f32* y = static_cast<f32*>(args[1].address) + item * cols.positions * P::C;
    i32* index = static_cast<i32*>(args[2].address) + item * cols.positions * P::C;
    const Range r = rows.taps(p);
    for (i64 q = 0; q < cols.positions; ++q) {
        const Range s = cols.taps(q);
        const i64 corner = rows.start(p) * W + cols.start(q);
        for (i64 c = 0; c < P::C; c += LANES) {
            const i64 left = P::C - c;
            const i64 start = corner + r.first * P::DH * W + s.first * P::DW;
            vec best = load_tail(x + start * P::C + c, left);
            ivec place = broadcast_i32(i32(start));
            for (i64 i = r.first; i < r.last; ++i) {
                for (i64 j = s.first; j < s.last; ++j) {
                    const i64 at = corner + i * P::DH * W + j * P::DW;
                    const vec value = load_tail(x + at * P::C + c, left);
                    ivec wins = replaces(value, best);
                    if constexpr (P::MAGNITUDE) wins = outweighs(value, best);
                    best = select(wins, value, best);
                    place = select_i32(wins, broadcast_i32(i32(at)), place);
                }
            }
            store_tail(y + q * P::C + c, best, left);
            if constexpr (P::INDEX) {
                if (left >= LANES)
                    store_i32(index + q * P::C + c, place);
                else
                    for (i64 l = 0; l < left; ++l) index[q * P::C + c + l] = place[l];
            }
        }
    }
}

}  // namespace convloom
