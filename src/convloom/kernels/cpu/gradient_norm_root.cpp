// norm = square root of the sum of `count` float64 partial sums, added in order.
//
// Arguments: partial, norm, count. One item.
#include "abi.h"

namespace convloom {

template <class P>
void gradient_norm_root(const Arg* args, long, Worker*) {
    const f64* partial = static_cast<const f64*>(args[0].address);
    f64 total = 0;
    for (i64 i = 0; i < args[2].integer; ++i) total += partial[i];
    *static_cast<f64*>(args[1].address) = __builtin_sqrt(total);
}

}  // namespace convloom
