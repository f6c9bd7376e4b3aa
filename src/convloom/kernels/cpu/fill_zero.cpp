// Zeroes a buffer of floats: sums over an empty batch. Item: the whole. Limit: bytes.
// Arguments: out, elements.
#include "simd.h"

namespace convloom {

template <class P>
void fill_zero(const Arg* args, long, Worker*) {
    fill_zero((f32*)args[0].address, args[1].integer);
}

}  // namespace convloom
