// Every filter of w scaled so that its size over its number of weights lies within low and high.
//
// The size is the filter's length, with P::CENTRED of the filter less its mean; sums are float64.
// A filter of size 0 stays, and with SUMMING all do unless hyper[move] says that w has moved. One
// thread a filter, in place.
// Limit: three walks over a filter by one thread; filters are few, and limits rare.
#include "device/index.cuh"

template <class P>
__global__ void limit_filters_naive(f32* w, i64 filters, i64 count, f32 low, f32 high,
                                    const f64* hyper, i64 move) {
    const i64 filter = global_thread();
    if (filter >= filters) return;
    if (P::SUMMING && hyper[move] == 0) return;
    f32* mine = w + filter * count;
    f64 mean = 0, squares = 0;
    if (P::CENTRED != 0) {
        for (i64 i = 0; i < count; ++i) mean += f64(mine[i]);
        mean /= f64(count);
    }
    for (i64 i = 0; i < count; ++i) squares += (f64(mine[i]) - mean) * (f64(mine[i]) - mean);
    const f64 size = sqrt(squares) / f64(count);
    if (!(size > 0)) return;
    const f32 factor = f32((size < low ? low : size > high ? high : size) / size);
    for (i64 i = 0; i < count; ++i) mine[i] *= factor;
}
