// Mean and sum of squared differences from it, of every channel over a chunk of rows
//
// partials (item, {mean, squares}, channel). A thread holds six rows of its channels at a time,
// whose statistics are exact; those of further rows, and of the threads of a block, are joined
// (Chan, Golub and LeVeque, 1979) in an order that never changes. With COUNT the batch is counted.
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
__global__ void __launch_bounds__(ROW_THREADS, 4)
    norm_statistics_tiled(const f32* x, f32* partials, i64 channels, i64 rows, i64 chunks,
                          const i64* before, i64* after) {
    constexpr int VEC = P::VEC, ACROSS = P::ACROSS, HELD = 6;
    using Tile = RowTile<ACROSS, VEC>;
    __shared__ Statistics<VEC> part[ROW_THREADS];
    const Tile tile(channels, rows, chunks);
    Statistics<VEC> mine = {};
    if (tile.inside) {
        for (i64 row = tile.rows.first + tile.down; row < tile.rows.last; row += HELD * Tile::DOWN) {
            Channels<VEC> held[HELD];
            const i64 left = ceil_div(tile.rows.last - row, Tile::DOWN);
            const int count = int(least(left, HELD));
#pragma unroll
            for (int r = 0; r < HELD; ++r)
                held[r] = load_channels<VEC>(
                    x + (row + least(r, count - 1) * Tile::DOWN) * channels + tile.channel);
            Statistics<VEC> these = {f32(count)};
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                f32 sum = 0.0f;
#pragma unroll
                for (int r = 1; r < HELD; ++r)
                    if (r < count) sum += held[r].at[v] - held[0].at[v];
                const f32 mean = held[0].at[v] + sum / f32(count);
                these.mean.at[v] = mean;
#pragma unroll
                for (int r = 0; r < HELD; ++r) {
                    const f32 d = held[r].at[v] - mean;
                    if (r < count) these.squares.at[v] = fmaf(d, d, these.squares.at[v]);
                }
            }
            mine.join(these);
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
