// y = sum of each window's cells inside the input, over the number of cells counted. NHWC.
//
// Arguments: x, y, H, W, P, Q (output size). An item is one output row of one image; vectors run
// along channels. Limit: one load and one addition a tap.
#include "pool.h"

namespace convloom {

template <class P>
void avg_pool(const Arg* args, long item, Worker*) {
    const i64 H = args[2].integer, W = args[3].integer;
    const i64 rows = args[4].integer, cols = args[5].integer;
    const i64 image = item / rows, p = item % rows;
    const f32* x = static_cast<const f32*>(args[0].address) + image * H * W * P::C;
    f32* y = static_cast<f32*>(args[1].address) + item * cols * P::C;
    const Range r = taps_inside<P::KH, P::SH, P::PH, 1>(p, H);
    const i64 high = cells_counted<P::KH, P::SH, P::PH, P::COUNT_PADDING>(p, H);
    for (i64 q = 0; q < cols; ++q) {
        const Range s = taps_inside<P::KW, P::SW, P::PW, 1>(q, W);
        const i64 corner = (p * P::SH - P::PH) * W + q * P::SW - P::PW;
        const i64 wide = cells_counted<P::KW, P::SW, P::PW, P::COUNT_PADDING>(q, W);
        const vec count = broadcast(f32(high * wide));
        for (i64 c = 0; c < P::C; c += LANES) {
            vec sum = zero();
            for (i64 i = r.first; i < r.last; ++i)
                for (i64 j = s.first; j < s.last; ++j)
                    sum += load_tail(x + (corner + i * W + j) * P::C + c, P::C - c);
            store_tail(y + q * P::C + c, sum / count, P::C - c);
        }
    }
}

}  // namespace convloom
