// y[n,k] = the sum of z[n,j] over the nodes j on the path from leaf k up to a tree's root
//
// Arguments: z (N,M), parents (i64 (M,), -1 above the root), y (N,C), N, M, C, rows an item.
// An item is some rows; a path that leaves the tree or has no end gives NaN. Limit: the latency of
// following a path, one number after the other.
#include "simd.h"

namespace convloom {

template <class P>
void path_sum(const Arg* args, long item, Worker*) {
    const i64* parents = static_cast<const i64*>(args[1].address);
    const i64 M = args[4].integer, C = args[5].integer, rows = args[6].integer;
    const i64 last = min((item + 1) * rows, args[3].integer);
    for (i64 n = item * rows; n < last; ++n) {
        const f32* z = static_cast<const f32*>(args[0].address) + n * M;
        f32* y = static_cast<f32*>(args[2].address) + n * C;
        for (i64 k = 0; k < C; ++k) {
            f32 sum = 0.0f;
            i64 node = k, left = M;
            for (; node >= 0 && node < M && left > 0; --left, node = parents[node]) sum += z[node];
            y[k] = node < 0 ? sum : __builtin_nanf("");
        }
    }
}

}  // namespace convloom
