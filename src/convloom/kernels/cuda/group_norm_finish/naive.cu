// Mean and 1/std of each group of channels of an image from the chunks' statistics
//
// means and scales are rows of channels, what norm_apply takes; mean and invstd a number a group.
// Sums as in batch_norm_finish, over the chunks and the channels of a group. One thread a group.
// Limit: few threads, each of which waits for its loads.
#include "device/rows.cuh"

template <class P>
__global__ void group_norm_finish_naive(const f32* partials, i64 channels, i64 rows, i64 chunks,
                                        i64 groups, i64 images, f32 eps, f32* means, f32* scales,
                                        f32* mean, f32* invstd, const f32* weight) {
    const i64 i = global_thread(), image = i / groups, width = channels / groups;
    if (image >= images) return;
    const i64 first = i % groups * width;
    const f32* from = partials + image * chunks * 2 * channels;
    const i64 length = ceil_div(rows, greatest(chunks, 1));
    f64 m = 0.0, squares = 0.0;
    for (i64 k = 0; k < chunks; ++k)
        for (i64 c = first; c < first + width; ++c)
            m += rows_of_chunk(k, rows, length) * f64(from[2 * k * channels + c]);
    m /= f64(rows * width);
    for (i64 k = 0; k < chunks; ++k)
        for (i64 c = first; c < first + width; ++c) {
            const f64 d = from[2 * k * channels + c] - m;
            squares += from[(2 * k + 1) * channels + c] + rows_of_chunk(k, rows, length) * d * d;
        }
    const f32 inverse = f32(1.0 / sqrt(squares / f64(rows * width) + f64(eps)));
    mean[i] = f32(m);
    invstd[i] = inverse;
    for (i64 c = first; c < first + width; ++c) {
        means[image * channels + c] = f32(m);
        scales[image * channels + c] = P::AFFINE != 0 ? inverse * weight[c] : inverse;
    }
}
