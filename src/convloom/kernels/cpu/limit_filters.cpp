// Every filter of a tensor scaled so that its size over its number of weights is within bounds.
//
// Arguments: w (address, changed in place), number of weights of a filter (integer), low, high
// (reals), hyper (address), which of its slots says whether w has moved (integer; with P::SUMMING
// alone, else it always has). The size is the filter's length, with P::CENTRED of the filter less its mean; sums are
// float64. A filter of size 0 stays. An item is a filter. Limit: memory bandwidth, three passes.
#include "simd.h"

namespace convloom {

template <class P>
void limit_filters(const Arg* args, long item, Worker*) {
    if (P::SUMMING != 0 && static_cast<const f64*>(args[4].address)[args[5].integer] == 0) return;
    const i64 count = args[1].integer;
    f32* w = static_cast<f32*>(args[0].address) + item * count;
    f64 mean = 0, squares = 0;
    if constexpr (P::CENTRED != 0) {
        for (i64 i = 0; i < count; ++i) mean += f64(w[i]);
        mean /= f64(count);
    }
    for (i64 i = 0; i < count; ++i) squares += (f64(w[i]) - mean) * (f64(w[i]) - mean);
    const f64 size = __builtin_sqrt(squares) / f64(count);
    const f64 low = args[2].real, high = args[3].real;
    if (!(size > 0)) return;
    const f32 factor = f32((size < low ? low : size > high ? high : size) / size);
    for (i64 i = 0; i < count; ++i) w[i] *= factor;
}

}  // namespace convloom
