// y = sum of each window's cells inside the input, over the number of cells counted (or over
// DIVISOR, where that is not 0). NHWC.
//
// Arguments: x, y, H, W, P, Q (output size). An item is one output row of one image; vectors run
// along channels, four at a time so that large windows read whole runs of memory.
// Limit: one load and one addition a tap.
#include "pool.h"

namespace convloom {

// The sums of VECTORS vectors of channels over rows r and columns s; `left` channels remain.
template <class P, int VECTORS>
CL_INLINE void sum_window(const f32* x, i64 W, const Range& r, const Range& s, i64 left,
                          vec (&sum)[VECTORS]) {
    CL_UNROLL for (int v = 0; v < VECTORS; ++v) sum[v] = zero();
    for (i64 i = r.first; i < r.last; ++i)
        for (i64 j = s.first; j < s.last; ++j)
            CL_UNROLL for (int v = 0; v < VECTORS; ++v)
                sum[v] += load_tail(x + (i * W + j) * P::C + v * LANES, left - v * LANES);
}

template <class P>
void avg_pool(const Arg* args, long item, Worker*) {
    constexpr int TOGETHER = 4;
    const i64 H = args[2].integer, W = args[3].integer;
    const RowWindows<P> rows{H, args[4].integer};
    const ColWindows<P> cols{W, args[5].integer};
    const i64 image = item / rows.positions, p = item % rows.positions;
    const f32* x = static_cast<const f32*>(args[0].address) + image * H * W * P::C;
    f32* y = static_cast<f32*>(args[1].address) + item * cols.positions * P::C;
    const Range r = rows.taps(p);
    const i64 high = rows.template counted<P::COUNT_PADDING>(p);
    for (i64 q = 0; q < cols.positions; ++q) {
        const Range s = cols.taps(q);
        const i64 wide = cols.template counted<P::COUNT_PADDING>(q);
        const vec count = broadcast(f32(P::DIVISOR ? P::DIVISOR : high * wide));
        const f32* corner = x + (rows.start(p) * W + cols.start(q)) * P::C;
        f32* to = y + q * P::C;
        i64 c = 0;
        for (; c + TOGETHER * LANES <= P::C; c += TOGETHER * LANES) {
            vec sum[TOGETHER];
            sum_window<P>(corner + c, W, r, s, TOGETHER * LANES, sum);
            CL_UNROLL for (int v = 0; v < TOGETHER; ++v) store(to + c + v * LANES, sum[v] / count);
        }
        for (; c < P::C; c += LANES) {
            vec sum[1];
            sum_window<P>(corner + c, W, r, s, P::C - c, sum);
            store_tail(to + c, sum[0] / count, P::C - c);
        }
    }
}

}  // namespace convloom
