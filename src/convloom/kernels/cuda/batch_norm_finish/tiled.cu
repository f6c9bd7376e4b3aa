// Mean and 1/std of every channel from the chunks' statistics, and the running values after it
//
// As naive; a block takes 32 channels: each of its 32 warps adds every 32nd chunk, lane by lane, and
// one thread a channel adds the 32 sums in order.
// Against naive: 32 loads of a channel are on their way at once, by neighbours.
// Limit: waiting for two rounds of loads from the second-level cache.
#include "device/batch_norm.cuh"
#include "device/rows.cuh"

constexpr int FINISH_WARPS = 32;

// The sum of `value` over the warps, lane by lane, for every warp.
__device__ __forceinline__ f64 sum_over_warps(f64 value, f64 (*part)[32]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    part[warp][lane] = value;
    __syncthreads();
    f64 sum = 0.0;
    for (int other = 0; other < FINISH_WARPS; ++other) sum += part[other][lane];
    return sum;
}

template <class P>
__global__ void __launch_bounds__(1024)
    batch_norm_finish_tiled(const f32* partials, i64 channels, i64 rows, i64 chunks, f32 eps,
                            f32* scale, f32* mean, f32* invstd, const f32* weight,
                            const f32* old_mean, const f32* old_variance, f32* new_mean,
                            f32* new_variance, f32 momentum, const i64* batches) {
    __shared__ f64 part[FINISH_WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 c = i64(blockIdx.x) * 32 + lane;
    const bool inside = c < channels;
    const i64 length = ceil_div(rows, greatest(chunks, 1));
    f64 m = 0.0, squares = 0.0;
    if (inside)
#pragma unroll 4
        for (i64 i = warp; i < chunks; i += FINISH_WARPS)
            m += rows_of_chunk(i, rows, length) * f64(partials[2 * i * channels + c]);
    m = sum_over_warps(m, part) / f64(rows);
    if (inside)
#pragma unroll 4
        for (i64 i = warp; i < chunks; i += FINISH_WARPS) {
            const f64 d = partials[2 * i * channels + c] - m;
            const f64 n = rows_of_chunk(i, rows, length);
            squares += partials[(2 * i + 1) * channels + c] + n * d * d;
        }
    squares = sum_over_warps(squares, part);
    if (warp != 0 || !inside) return;
    const BatchNorm norm = {scale,        mean,     invstd,       weight,   old_mean,
                            old_variance, new_mean, new_variance, momentum, batches};
    norm.template finish<P>(c, m, squares, rows, eps);
}
