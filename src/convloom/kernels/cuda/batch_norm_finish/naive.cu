// Mean and 1/std of every channel from the chunks' statistics, and the running values after it
//
// mean = sum n_i mean_i / n and the squared differences are sum (squares_i + n_i (mean_i - mean)^2)
// (Chan, Golub and LeVeque, 1979), in float64, in order. One thread a channel.
// Limit: few threads, each of which waits for its loads.
#include "device/batch_norm.cuh"
#include "device/rows.cuh"

template <class P>
__global__ void batch_norm_finish_naive(const f32* partials, i64 channels, i64 rows, i64 chunks,
                                        f32 eps, f32* scale, f32* mean, f32* invstd,
                                        const f32* weight, const f32* old_mean,
                                        const f32* old_variance, f32* new_mean, f32* new_variance,
                                        f32 momentum, const i64* batches) {
    const i64 c = global_thread();
    if (c >= channels) return;
    const i64 length = ceil_div(rows, greatest(chunks, 1));
    f64 m = 0.0, squares = 0.0;
    for (i64 i = 0; i < chunks; ++i)
        m += rows_of_chunk(i, rows, length) * f64(partials[2 * i * channels + c]);
    m /= f64(rows);
    for (i64 i = 0; i < chunks; ++i) {
        const f64 d = partials[2 * i * channels + c] - m;
        squares += partials[(2 * i + 1) * channels + c] + rows_of_chunk(i, rows, length) * d * d;
    }
    const BatchNorm norm = {scale,        mean,     invstd,       weight,   old_mean,
                            old_variance, new_mean, new_variance, momentum, batches};
    norm.template finish<P>(c, m, squares, rows, eps);
}
