// y = the function KIND of x, element by element.
//
// Arguments: x, y, number of elements, the function's parameters a and b (real). An item is CHUNK
// consecutive elements. Limit: memory bandwidth where no exponential is taken, else about 20
// instructions for each of a vector.
#include "activation.h"

namespace convloom {

template <class P>
void activation(const Arg* args, long item, Worker*) {
    const f32* x = static_cast<const f32*>(args[0].address);
    f32* y = static_cast<f32*>(args[1].address);
    const i64 last = min((item + 1) * P::CHUNK, args[2].integer);
    const f32 a = f32(args[3].real), b = f32(args[4].real);
    for (i64 i = item * P::CHUNK; i < last; i += LANES)
        store_tail(y + i, activate<P::KIND>(load_tail(x + i, last - i), a, b), last - i);
}

}  // namespace convloom
