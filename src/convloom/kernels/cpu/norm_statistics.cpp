// Mean and sum of squared differences from it, of every channel over a chunk of rows.
//
// Arguments: x, partials (item, {mean, squares}, channel), channels, rows of an image, chunks of
// an image, and with P::COUNT a number of batches before and after. An item is a chunk, read twice:
// from memory, then from the cache, since squares of differences lose nothing where squares of large
// values would; the mean is of differences from the first row, for the same reason. Chunks depend on the problem only. Limit: bytes, one read of x.
#include "rows.h"

namespace convloom {

template <class P>
void norm_statistics(const Arg* args, long item, Worker*) {
    const i64 channels = args[2].integer;
    const Rows rows = chunk_of_rows(item, args[3].integer, args[4].integer);
    const f32* x = (const f32*)args[0].address + rows.first * channels;
    f32* means = (f32*)args[1].address + item * 2 * channels;
    const i64 count = rows.last - rows.first;
    const vec number = broadcast(f32(count));
    channel_blocks<P>(channels, [&](i64 k, auto block) __attribute__((always_inline)) {
        constexpr int V = decltype(block)::VECTORS;
        vec mean[V], squares[V], first[V];
        CL_UNROLL for (int j = 0; j < V; ++j) {
            mean[j] = squares[j] = zero();
            first[j] = block.load(x + k, j);
        }
        for (i64 i = 0; i < count; ++i)
            CL_UNROLL for (int j = 0; j < V; ++j)
                mean[j] += block.load(x + i * channels + k, j) - first[j];
        CL_UNROLL for (int j = 0; j < V; ++j) mean[j] = first[j] + mean[j] / number;
        for (i64 i = 0; i < count; ++i)
            CL_UNROLL for (int j = 0; j < V; ++j) {
                const vec d = block.load(x + i * channels + k, j) - mean[j];
                squares[j] = fma(d, d, squares[j]);
            }
        CL_UNROLL for (int j = 0; j < V; ++j) {
            block.store(means + k, j, mean[j]);
            block.store(means + channels + k, j, squares[j]);
        }
    });
    if constexpr (P::COUNT != 0)
        if (item == 0) *(i64*)args[6].address = *(const i64*)args[5].address + 1;
}

}  // namespace convloom
