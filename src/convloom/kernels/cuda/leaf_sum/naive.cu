// dz[n,j] = the sum of dy[n,k] over the leaves k below node j of a tree: the gradient of path_sum
//
// One thread an output; the leaves below node j are order[first[j]], ..., leaves[j] of them, and
// every fourth goes to one of four sums. Tables that lead out of the tree give NaN.
// Limit: latency; the threads of the nodes near the root add up nearly all leaves.
#include "device/index.cuh"

template <class P>
__global__ void leaf_sum_naive(const f32* dy, const i64* first, const i64* leaves,
                               const i64* order, f32* dz, i64 size, i64 nodes, i64 classes) {
    const i64 i = global_thread();
    if (i >= size) return;
    const f32* row = dy + i / nodes * classes;
    const i64 begin = first[i % nodes], count = leaves[i % nodes];
    const bool inside = begin >= 0 && count >= 0 && begin <= classes && count <= classes - begin;
    const auto at = [&](i64 place) {
        const i64 leaf = order[begin + place];
        return leaf >= 0 && leaf < classes ? row[leaf] : __int_as_float(0x7fffffff);
    };
    f32 sums[4] = {inside ? 0.0f : __int_as_float(0x7fffffff)};
    i64 place = 0;
    for (; inside && place + 4 <= count; place += 4)
#pragma unroll
        for (i32 lane = 0; lane < 4; ++lane) sums[lane] += at(place + lane);
    for (; inside && place < count; ++place) sums[0] += at(place);
    dz[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
