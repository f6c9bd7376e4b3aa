// probability = softmax(logits), and the samples' cross-entropy: its mean where one block does all,
// else each block's sum, of which mean_of_partials makes the mean.
//
// The logits of a sample lie on neighbouring lanes: as many as classes, up to a warp; a warp takes
// several samples where classes are few. Maximum and sums go by shuffles. Exponentials are float32,
// their sums and the loss float64.
// Against fused: lanes read neighbours, all of a sample's exponentials are taken at once, and any
// batch is spread over the GPU.
// Limit: 8 bytes of memory traffic a logit.
#include "device/loss.cuh"
#include "device/reduce.cuh"

// The greatest over LANES neighbouring lanes, or NaN if there is one.
template <int LANES>
__device__ __forceinline__ f32 lanes_top(f32 value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = greater_or_nan(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

template <class P>
__global__ void softmax_cross_entropy_warp(const f32* logits, const void* target,
                                           f32* probability, f64* partial, f32* mean, i64 n,
                                           f32 smoothing) {
    constexpr int LANES = row_lanes(P::K), AT_ONCE = P::THREADS / LANES;
    constexpr int EACH = int(ceil_div(P::K, LANES));  // logits of a lane
    const f32 lowest = -__int_as_float(0x7f800000);
    const int lane = threadIdx.x % LANES;
    f64 total = 0.0;
    // Every lane goes round as often, so that whole warps shuffle.
    for (i64 first = i64(blockIdx.x) * AT_ONCE; first < n; first += i64(gridDim.x) * AT_ONCE) {
        const i64 sample = first + threadIdx.x / LANES;
        const i64 row = least(sample, n - 1) * P::K;
        f32 top = lowest;
        for (int e = 0; e < EACH; ++e) {
            const int k = lane + e * LANES;
            if (k < P::K) top = greater_or_nan(top, logits[row + k]);
        }
        top = lanes_top<LANES>(top);
        f64 sum = 0.0;
        for (int e = 0; e < EACH; ++e) {
            const int k = lane + e * LANES;
            if (k < P::K) sum += f64(expf(logits[row + k] - top));
        }
        sum = lanes_sum<1, LANES / 2>(sum);
        const f64 log_sum = log(sum);
        const f32 share = f32(1.0 / sum);
        if (sample >= n) continue;
        if (lane == 0 && lost_label<P>(target, sample)) total += nan("");
        for (int e = 0; e < EACH; ++e) {
            const int k = lane + e * LANES;
            if (k >= P::K) continue;
            const f32 logit = logits[row + k];
            probability[row + k] = expf(logit - top) * share;
            const f64 t = exact_weight<P>(target, sample, k, smoothing);
            if (t != 0.0 || P::PROBABILITY != 0) total -= t * (f64(logit) - f64(top) - log_sum);
        }
    }
    total = block_sum<P::THREADS>(total);
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1)
        *mean = f32(total / f64(n));
    else
        partial[blockIdx.x] = total;
}
