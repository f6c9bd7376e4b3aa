// error = {share of samples wrong at top 1, at top TOP} where one block does all, else each block's
// sums, of which mean_of_partials makes the means.
//
// The scores of a sample lie on neighbouring lanes, as in softmax_cross_entropy/warp; counts and
// sums are added by shuffles.
// Against naive: lanes read neighbours; a small batch needs one launch.
// Limit: 4 bytes of memory traffic a score.
#include "device/reduce.cuh"
#include "device/topk.cuh"

template <class P>
__global__ void topk_error_warp(const f32* scores, const i64* target, f64* partial, f32* error,
                                i64 n) {
    constexpr int LANES = row_lanes(P::K), AT_ONCE = P::THREADS / LANES;
    const int lane = threadIdx.x % LANES;
    f64 first_wrong = 0.0, top_wrong = 0.0;
    // Every lane goes round as often, so that whole warps shuffle.
    for (i64 first = i64(blockIdx.x) * AT_ONCE; first < n; first += i64(gridDim.x) * AT_ONCE) {
        const i64 sample = first + threadIdx.x / LANES;
        const f32* row = scores + least(sample, n - 1) * P::K;
        const i64 label = target[least(sample, n - 1)];
        const bool inside = label >= 0 && label < P::K;
        const f32 own = row[inside ? label : 0];
        const bool known = inside && own == own;
        i32 ahead = 0, equal = 0;
        for (i64 k = lane; k < P::K; k += LANES) {
            ahead += !(row[k] <= own);
            equal += row[k] == own;
        }
        ahead = lanes_sum<1, LANES / 2>(ahead);
        equal = lanes_sum<1, LANES / 2>(equal);
        if (lane != 0 || sample >= n) continue;
        first_wrong += known ? wrong_at(1, ahead, equal) : 1.0;
        top_wrong += known ? wrong_at(P::TOP, ahead, equal) : 1.0;
    }
    first_wrong = block_sum<P::THREADS>(first_wrong);
    top_wrong = block_sum<P::THREADS>(top_wrong);
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1) {
        error[0] = f32(first_wrong / f64(n));
        error[1] = f32(top_wrong / f64(n));
    } else {
        partial[blockIdx.x] = first_wrong;
        partial[gridDim.x + blockIdx.x] = top_wrong;
    }
}
