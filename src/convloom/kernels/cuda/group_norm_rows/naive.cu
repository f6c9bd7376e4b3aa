// A number a group as a row of channels: what norm_grad_sums and norm_grad_apply take as means
//
// One thread a channel of an image.
// Limit: none worth the name.
#include "device/index.cuh"

template <class P>
__global__ void group_norm_rows_naive(const f32* numbers, f32* rows, i64 channels, i64 groups,
                                      i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    const i64 image = i / channels, group = i % channels / (channels / groups);
    rows[i] = numbers[image * groups + group];
}
