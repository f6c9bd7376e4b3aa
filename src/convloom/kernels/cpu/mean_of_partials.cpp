// mean = (sum of `count` float64 partial sums, in order) / N, rounded once to float32.
//
// Arguments: partial, mean, count, N. One item. N = 0 gives NaN.
#include "abi.h"

namespace convloom {

template <class P>
void mean_of_partials(const Arg* args, long, Worker*) {
    const f64* partial = static_cast<const f64*>(args[0].address);
    f64 total = 0;
    for (i64 i = 0; i < args[2].integer; ++i) total += partial[i];
    *static_cast<f32*>(args[1].address) = f32(total / f64(args[3].integer));
}

}  // namespace convloom
