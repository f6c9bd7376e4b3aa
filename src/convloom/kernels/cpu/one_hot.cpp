// rows[n,k] = 1 where k is the label of sample n, else 0; NaN where the label is no class.
//
// Arguments: labels (i64), rows (N,K), N, K, rows an item. An item is some rows. Limit: memory
// bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void one_hot(const Arg* args, long item, Worker*) {
    const i64* labels = static_cast<const i64*>(args[0].address);
    const i64 K = args[3].integer, rows = args[4].integer;
    const i64 last = min((item + 1) * rows, args[2].integer);
    for (i64 n = item * rows; n < last; ++n) {
        f32* row = static_cast<f32*>(args[1].address) + n * K;
        const bool known = labels[n] >= 0 && labels[n] < K;
        const vec value = broadcast(known ? 0.0f : __builtin_nanf(""));
        for (i64 k = 0; k < K; k += LANES) store_tail(row + k, value, K - k);
        if (known) row[labels[n]] = 1.0f;
    }
}

}  // namespace convloom
