// y = x + bias, row by row. A row is `width` elements that meet as many elements of the bias; with
// PLANAR it is one channel of an image, whose elements all meet the channel's own.
//
// Arguments: x, bias, y, rows, width, rows an item, channels. Limit: memory.
#include "simd.h"

namespace convloom {

template <class P>
void add_bias(const Arg* args, long item, Worker*) {
    const f32* x = static_cast<const f32*>(args[0].address);
    const f32* bias = static_cast<const f32*>(args[1].address);
    f32* y = static_cast<f32*>(args[2].address);
    const i64 width = args[4].integer, channels = args[6].integer;
    const i64 first = item * args[5].integer, last = min(first + args[5].integer, args[3].integer);
    for (i64 row = first; row < last; ++row)
        for (i64 i = 0; i < width; i += LANES) {
            const i64 left = width - i, at = row * width + i;
            const vec add = P::PLANAR ? broadcast(bias[row % channels]) : load_tail(bias + i, left);
            store_tail(y + at, load_tail(x + at, left) + add, left);
        }
}

}  // namespace convloom
