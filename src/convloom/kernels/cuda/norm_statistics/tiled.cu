// Mean and sum of squared differences from it, of every channel over a chunk of rows
//
// partials (item, {mean, squares}, channel). A thread sums differences from the first of up to 64
// rows, and their squares: since that row is one of them, the sum of squares is at most 65 times
// that of differences from the mean, and as many times its rounding error is the most that is lost.
// Such groups of rows, and the threads of a block, are joined (Chan, Golub and LeVeque, 1979) in an
// order that never changes. With COUNT the batch is counted.
// Against naive: memory is read once, four channels at a time, by neighbours.
// Limit: 4 bytes of memory traffic an element.
#include "device/rows.cuh"

template <int VEC>
struct Statistics {
    f32 count;
    Channels<VEC> mean, squares;

    __device__ __forceinline__ void join(const Statistics& other) {
        const f32 total = count + other.count;
        if (total == 0.0f) return;
        const f32 share = other.count / total;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const f32 d = other.mean.at[v] - mean.at[v];
            mean.at[v] = fmaf(d, share, mean.at[v]);
            squares.at[v] += fmaf(d * d, count * share, other.squares.at[v]);
        }
        count = total;
    }
};

template <class P>
__global__ void __launch_bounds__(ROW_THREADS)
    norm_statistics_tiled(const f32* x, f32* partials, i64 channels, i64 rows, i64 chunks,
                          const i64* before, i64* after) {
    constexpr int VEC = P::VEC, ACROSS = P::ACROSS, GROUP = 64;
    using Tile = RowTile<ACROSS, VEC>;
    __shared__ Statistics<VEC> part[ROW_THREADS];
    const Tile tile(channels, rows, chunks);
    const i64 step = Tile::DOWN * channels;
    Statistics<VEC> mine = {};
    if (tile.inside) {
        for (i64 row = tile.rows.first + tile.down; row < tile.rows.last;
             row += GROUP * Tile::DOWN) {
            const f32* from = x + row * channels + tile.channel;
            const int count = int(least(ceil_div(tile.rows.last - row, Tile::DOWN), GROUP));
            const Channels<VEC> first = load_channels<VEC>(from);
            Channels<VEC> sum = {}, squares = {};
#pragma unroll 3
            for (int r = 1; r < count; ++r) {
                const Channels<VEC> v = load_channels<VEC>(from + r * step);
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    const f32 d = v.at[k] - first.at[k];
                    sum.at[k] += d;
                    squares.at[k] = fmaf(d, d, squares.at[k]);
                }
            }
            Statistics<VEC> group = {f32(count)};
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const f32 mean = sum.at[k] / f32(count);
                group.mean.at[k] = first.at[k] + mean;
                const f32 rest = fmaf(-mean, sum.at[k], squares.at[k]);
                group.squares.at[k] = rest < 0.0f ? 0.0f : rest;
            }
            mine.join(group);
        }
    }
    part[threadIdx.x] = mine;
    for (int half = Tile::DOWN / 2; half > 0; half /= 2) {
        __syncthreads();
        if (tile.down < half) {
            mine.join(part[threadIdx.x + half * ACROSS]);
            part[threadIdx.x] = mine;
        }
    }
    if (tile.down == 0 && tile.inside) {
        f32* to = partials + 2 * tile.item * channels + tile.channel;
        store_channels<VEC>(to, mine.mean);
        store_channels<VEC>(to + channels, mine.squares);
    }
    if constexpr (P::COUNT != 0)
        if (blockIdx.x == 0 && threadIdx.x == 0) *after = *before + 1;
}
