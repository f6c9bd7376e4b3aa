// Mean and 1/std of each group of channels of an image from the chunks' statistics
//
// As naive; a warp takes a group: its lanes share the channels of all chunks, and are added by
// shuffles.
// Against naive: 32 loads of a group are on their way at once, by neighbours.
// Limit: waiting for two rounds of loads from the second-level cache.
#include "device/reduce.cuh"
#include "device/rows.cuh"

template <class P>
__global__ void group_norm_finish_tiled(const f32* partials, i64 channels, i64 rows, i64 chunks,
                                        i64 groups, i64 images, f32 eps, f32* means, f32* scales,
                                        f32* mean, f32* invstd, const f32* weight) {
    const i64 i = global_thread() / 32, image = i / groups, width = channels / groups;
    const int lane = threadIdx.x % 32;
    if (image >= images) return;
    const i64 first = i % groups * width;
    const f32* from = partials + image * chunks * 2 * channels;
    const i64 length = ceil_div(rows, greatest(chunks, 1));
    f64 m = 0.0, squares = 0.0;
    for (i64 j = lane; j < chunks * width; j += 32) {
        const i64 k = j / width, c = first + j % width;
        m += rows_of_chunk(k, rows, length) * f64(from[2 * k * channels + c]);
    }
    m = warp_sum(m) / f64(rows * width);
    for (i64 j = lane; j < chunks * width; j += 32) {
        const i64 k = j / width, c = first + j % width;
        const f64 d = from[2 * k * channels + c] - m;
        squares += from[(2 * k + 1) * channels + c] + rows_of_chunk(k, rows, length) * d * d;
    }
    squares = warp_sum(squares);
    const f32 inverse = f32(1.0 / sqrt(squares / f64(rows * width) + f64(eps)));
    if (lane == 0) {
        mean[i] = f32(m);
        invstd[i] = inverse;
    }
    for (i64 c = first + lane; c < first + width; c += 32) {
        means[image * channels + c] = f32(m);
        scales[image * channels + c] = P::AFFINE != 0 ? inverse * weight[c] : inverse;
    }
}
