// correct = {samples whose label has rank 0, samples whose label has rank below TOP}
//
// The logits of a sample lie on neighbouring lanes, as in softmax_cross_entropy/warp; ranks and
// counts are added by shuffles. One block writes the counts; several add theirs to counts that
// start at 0, with integer atomics (their order cannot matter).
// Against naive: lanes read neighbours; a small batch needs one launch and no atomics.
// Limit: 4 bytes of memory traffic a logit.
#include "device/reduce.cuh"
#include "device/topk.cuh"

template <class P>
__global__ void topk_warp(const f32* logits, const i64* target, i32* correct, i64 n) {
    constexpr int LANES = row_lanes(P::K), AT_ONCE = P::THREADS / LANES;
    const int lane = threadIdx.x % LANES;
    i32 first_right = 0, top_right = 0;
    // Every lane goes round as often, so that whole warps shuffle.
    for (i64 first = i64(blockIdx.x) * AT_ONCE; first < n; first += i64(gridDim.x) * AT_ONCE) {
        const i64 sample = first + threadIdx.x / LANES;
        const f32* row = logits + least(sample, n - 1) * P::K;
        const i64 label = target[least(sample, n - 1)];
        const bool found = sample < n && label >= 0 && label < P::K;
        const f32 own = row[found ? label : 0];
        i32 rank = 0;
        for (i64 k = lane; k < P::K; k += LANES) rank += ranks_before(row[k], k, own, label);
        rank = lanes_sum<1, LANES / 2>(rank);
        const bool counts = lane == 0 && found && own == own;
        first_right += counts && rank < 1;
        top_right += counts && rank < P::TOP;
    }
    first_right = block_sum<P::THREADS>(first_right);
    top_right = block_sum<P::THREADS>(top_right);
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1) {
        correct[0] = first_right;
        correct[1] = top_right;
    } else {
        atomicAdd(correct, first_right);
        atomicAdd(correct + 1, top_right);
    }
}
