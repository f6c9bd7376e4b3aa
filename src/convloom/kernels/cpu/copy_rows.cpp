// Copies `width` 4-byte elements of every row of one matrix into another: joins and slices along
// channels.
//
// Arguments: from, to (both point at the first element), width, row length of from, row length
// of to, rows, rows an item. Limit: memory bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void copy_rows(const Arg* args, long item, Worker*) {
    const f32* from = static_cast<const f32*>(args[0].address);
    f32* to = static_cast<f32*>(args[1].address);
    const i64 width = args[2].integer, from_row = args[3].integer, to_row = args[4].integer;
    const i64 first = item * args[6].integer, last = min(first + args[6].integer, args[5].integer);
    for (i64 r = first; r < last; ++r) copy(to + r * to_row, from + r * from_row, width);
}

}  // namespace convloom
