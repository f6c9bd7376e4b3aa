// y = 0 where x <= 0, else x: NaN passes.
//
// Arguments: x, y, number of elements. An item is CHUNK consecutive elements. Limit: memory
// bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void relu(const Arg* args, long item, Worker*) {
    const f32* x = static_cast<const f32*>(args[0].address);
    f32* y = static_cast<f32*>(args[1].address);
    const i64 last = min((item + 1) * P::CHUNK, args[2].integer);
    for (i64 i = item * P::CHUNK; i < last; i += LANES)
        store_tail(y + i, convloom::relu(load_tail(x + i, last - i)), last - i);
}

}  // namespace convloom
