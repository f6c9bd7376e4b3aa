// y = x where x > 0 or x is NaN, else 0.
//
// Arguments: x, y, number of elements. An item is CHUNK consecutive elements; the compiler
// vectorises the loop, so the memory bandwidth is the limit.
#include "abi.h"

namespace convloom {

template <class P>
void relu(const Arg* args, long item, Worker*) {
    const f32* __restrict x = static_cast<const f32*>(args[0].address);
    f32* __restrict y = static_cast<f32*>(args[1].address);
    const i64 first = item * P::CHUNK;
    const i64 last = first + P::CHUNK < args[2].integer ? first + P::CHUNK : args[2].integer;
    // "x <= 0 ? 0 : x", not a maximum: the comparison is false for NaN, which passes.
    for (i64 i = first; i < last; ++i) y[i] = x[i] <= 0 ? 0.0f : x[i];
}

}  // namespace convloom
