// Sums of dy and of dy (x - mean), of every channel over a chunk of rows
//
// partials (item, {dy, dy (x - mean)}, channel); mean advances by `step` from image to image. One
// thread a channel of a chunk.
// Limit: few threads, each of which waits for its loads.
#include "device/rows.cuh"

template <class P>
__global__ void norm_grad_sums_naive(const f32* dy, const f32* x, const f32* means, f32* partials,
                                     i64 channels, i64 rows, i64 chunks, i64 step, i64 items) {
    const i64 i = global_thread(), c = i % channels, item = i / channels;
    if (item >= items) return;
    const Rows chunk = chunk_of_rows(item, rows, chunks);
    const f32 mean = means[chunk.image * step + c];
    f32 plain = 0.0f, moment = 0.0f;
    for (i64 row = chunk.first; row < chunk.last; ++row) {
        const f32 g = dy[row * channels + c];
        plain += g;
        moment = fmaf(g, x[row * channels + c] - mean, moment);
    }
    partials[2 * item * channels + c] = plain;
    partials[(2 * item + 1) * channels + c] = moment;
}
