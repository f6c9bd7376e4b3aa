// dx = 0, then dx[index] += dy for every window, in scan order. Images are NHWC.
//
// Arguments: dy, index, dx, cells of an input plane, windows of an output plane. An item is CB
// channels of one image, so no two items meet and sums have one order.
// Limit: one scalar read-modify-write for each dy.
#include "simd.h"

namespace convloom {

template <class P>
void max_pool_grad(const Arg* args, long item, Worker*) {
    constexpr i64 blocks = ceil_div(P::C, P::CB);
    const i64 cells = args[3].integer, windows = args[4].integer;
    const i64 image = item / blocks, c = item % blocks * P::CB, width = min(P::CB, P::C - c);
    const f32* dy = static_cast<const f32*>(args[0].address) + image * windows * P::C + c;
    const i32* index = static_cast<const i32*>(args[1].address) + image * windows * P::C + c;
    f32* dx = static_cast<f32*>(args[2].address) + image * cells * P::C + c;
    for (i64 i = 0; i < cells; ++i) fill_zero(dx + i * P::C, width);
    for (i64 i = 0; i < windows; ++i)
        for (i64 k = 0; k < width; ++k) dx[i64(index[i * P::C + k]) * P::C + k] += dy[i * P::C + k];
}

}  // namespace convloom
