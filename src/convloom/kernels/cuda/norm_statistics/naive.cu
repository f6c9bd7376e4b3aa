// Mean and sum of squared differences from it, of every channel over a chunk of rows
//
// partials (item, {mean, squares}, channel). One thread a channel of a chunk; it reads the chunk
// twice, since squares of differences lose nothing where squares of large values would. The mean is
// of differences from the first row, for the same reason. With COUNT thread 0 counts the batch.
// Limit: few threads, each of which waits for its loads.
#include "device/rows.cuh"

template <class P>
__global__ void norm_statistics_naive(const f32* x, f32* partials, i64 channels, i64 rows,
                                      i64 chunks, i64 items, const i64* before, i64* after) {
    const i64 i = global_thread(), c = i % channels, item = i / channels;
    if constexpr (P::COUNT != 0)
        if (i == 0) *after = *before + 1;
    if (item >= items) return;
    const Rows chunk = chunk_of_rows(item, rows, chunks);
    const f32* from = x + chunk.first * channels + c;
    const i64 count = chunk.last - chunk.first;
    f32 mean = 0.0f, squares = 0.0f;
    for (i64 row = 0; row < count; ++row) mean += from[row * channels] - from[0];
    mean = from[0] + mean / f32(count);
    for (i64 row = 0; row < count; ++row) {
        const f32 d = from[row * channels] - mean;
        squares = fmaf(d, d, squares);
    }
    partials[2 * item * channels + c] = mean;
    partials[(2 * item + 1) * channels + c] = squares;
}
