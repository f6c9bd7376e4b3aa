// losses[clock] = loss;  corrects[clock] = correct;  clock += 1
//
// One thread, at the end of a training step: what the host will want to know of it, kept until
// the host reads the results of many steps at once. Limit: the launch itself.
#include "device/index.cuh"

template <class P>
__global__ void record_naive(const f32* loss, const i32* correct, f32* losses, i32* corrects,
                             u64* clock) {
    if (global_thread() != 0) return;
    const i64 step = i64(clock[0]);
    losses[step] = loss[0];
    for (i64 k = 0; k < P::RANKS; ++k) corrects[step * P::RANKS + k] = correct[k];
    clock[0] = u64(step) + 1;
}
