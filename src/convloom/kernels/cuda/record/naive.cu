// losses[clock] = loss;  corrects[clock] = correct;  costs[clock] = cost;  clock += 1
//
// One thread, at the end of a training step: what the host will want to know of it, kept until
// the host reads the results of many steps at once. Limit: the launch itself.
#include "device/index.cuh"

template <class P>
__global__ void record_naive(const f32* loss, const i32* correct, const f32* cost, f32* losses,
                             i32* corrects, f32* costs, u64* clock) {
    if (global_thread() != 0) return;
    const i64 step = i64(clock[0]);
    losses[step] = loss[0];
    for (i64 k = 0; k < P::RANKS; ++k) corrects[step * P::RANKS + k] = correct[k];
    for (i64 m = 0; m < P::COSTS; ++m) costs[step * P::COSTS + m] = cost[m];
    clock[0] = u64(step) + 1;
}
