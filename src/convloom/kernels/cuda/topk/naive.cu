// correct += {1 if the label's rank is 0, 1 if it is below TOP}, over all samples
//
// One thread a sample, with integer atomics (their order cannot matter); `correct` starts at 0.
// The rank is the number of classes before the label (device/topk.cuh); a label whose own logit
// is NaN is never right.
// Limit: K loads a thread, and N atomics on two words.
#include "device/topk.cuh"

template <class P>
__global__ void topk_naive(const f32* logits, const i64* target, i32* correct, i64 n) {
    const i64 sample = global_thread();
    if (sample >= n) return;
    const f32* row = logits + sample * P::K;
    const i64 label = target[sample];
    if (label < 0 || label >= P::K || row[label] != row[label]) return;
    i64 rank = 0;
    for (i64 k = 0; k < P::K; ++k) rank += ranks_before(row[k], k, row[label], label);
    if (rank < 1) atomicAdd(correct, 1);
    if (rank < P::TOP) atomicAdd(correct + 1, 1);
}
