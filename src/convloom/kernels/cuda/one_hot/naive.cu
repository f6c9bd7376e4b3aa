// rows[n,k] = 1 where k is the label of sample n, else 0; NaN where the label is no class
//
// One thread an element. Limit: 4 bytes of memory traffic an element.
#include "device/index.cuh"

template <class P>
__global__ void one_hot_naive(const i64* labels, f32* rows, i64 size, i64 classes) {
    const i64 i = global_thread();
    if (i >= size) return;
    const i64 label = labels[i / classes];
    const bool known = label >= 0 && label < classes;
    rows[i] = known ? (label == i % classes ? 1.0f : 0.0f) : __int_as_float(0x7fffffff);
}
