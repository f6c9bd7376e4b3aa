// y = a * b, element by element.
//
// Arguments: a, b, y, number of elements. An item is CHUNK consecutive elements. Limit: memory
// bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void product(const Arg* args, long item, Worker*) {
    const f32* a = static_cast<const f32*>(args[0].address);
    const f32* b = static_cast<const f32*>(args[1].address);
    f32* y = static_cast<f32*>(args[2].address);
    const i64 last = min((item + 1) * P::CHUNK, args[3].integer);
    for (i64 i = item * P::CHUNK; i < last; i += LANES)
        store_tail(y + i, load_tail(a + i, last - i) * load_tail(b + i, last - i), last - i);
}

}  // namespace convloom
