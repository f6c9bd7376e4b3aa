// y[n,k] = the sum of z[n,j] over the nodes j on the path from leaf k up to a tree's root
//
// One thread an output; a path that leaves the tree or has no end gives NaN.
// Limit: latency, two dependent loads a node of the path.
#include "device/index.cuh"

template <class P>
__global__ void path_sum_naive(const f32* z, const i64* parents, f32* y, i64 size, i64 nodes,
                               i64 classes) {
    const i64 i = global_thread();
    if (i >= size) return;
    const f32* row = z + i / classes * nodes;
    f32 sum = 0.0f;
    i64 node = i % classes, left = nodes;
    for (; node >= 0 && node < nodes && left > 0; --left, node = parents[node]) sum += row[node];
    y[i] = node < 0 ? sum : __int_as_float(0x7fffffff);
}
