// dz[n,j] = the sum of dy[n,k] over the leaves k below node j of a tree: the gradient of path_sum
//
// Arguments: dy (N,C), first (i64 (M,)), leaves (i64 (M,)), order (i64 (C,)), dz (N,M), N, M, C,
// rows an item; the leaves below node j are order[first[j]], …, leaves[j] of them. An item is some
// rows; tables that lead out of the tree give NaN. Scratch: a row of dy in the tree's order.
// Limit: latency of additions.
#include "simd.h"

namespace convloom {

template <class P>
void leaf_sum(const Arg* args, long item, Worker* worker) {
    const auto table = [&](long i) { return static_cast<const i64*>(args[i].address); };
    const i64 *first = table(1), *leaves = table(2), *order = table(3);
    const i64 M = args[6].integer, C = args[7].integer, rows = args[8].integer;
    const i64 last = min((item + 1) * rows, args[5].integer);
    f32* walked = reinterpret_cast<f32*>(worker->scratch);
    for (i64 n = item * rows; n < last; ++n) {
        const f32* dy = static_cast<const f32*>(args[0].address) + n * C;
        f32* dz = static_cast<f32*>(args[4].address) + n * M;
        for (i64 i = 0; i < C; ++i) {
            const i64 leaf = order[i];
            walked[i] = leaf >= 0 && leaf < C ? dy[leaf] : __builtin_nanf("");
        }
        for (i64 j = 0; j < M; ++j) {
            const i64 begin = first[j], count = leaves[j];
            if (begin < 0 || count < 0 || begin > C || count > C - begin) {
                dz[j] = __builtin_nanf("");
                continue;
            }
            vec sums = zero();
            for (i64 i = 0; i < count; i += LANES)
                sums = sums + load_tail(walked + begin + i, count - i);
            dz[j] = horizontal_sum(sums);
        }
    }
}

}  // namespace convloom
