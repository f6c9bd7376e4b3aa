// Sums of g and of g (x - mean), of every channel over a chunk of rows, where g is what passes ACT
//
// partials (item, {g, g (x - mean)}, channel); mean advances by `step` from image to image. ACT is
// the activation behind the normalisation, NONE for g = dy; with KEEP g is written. A thread keeps
// its channels and walks the rows; the threads of a block are added in an order that never changes.
// Against naive: four channels an access, by neighbours, and the mask is applied on the way.
// Limit: 8 bytes of memory traffic an element; 4 more for y, where it is read, and for g.
#include "device/norm_gate.cuh"

template <class P>
__global__ void __launch_bounds__(ROW_THREADS)
    norm_grad_sums_tiled(const f32* dy, const f32* x, const f32* means, f32* partials,
                         i64 channels, i64 rows, i64 chunks, i64 step, f32* kept, const f32* y, const f32* invstd,
                         const f32* weight, const f32* bias) {
    constexpr int VEC = P::VEC, ACROSS = P::ACROSS;
    using Tile = RowTile<ACROSS, VEC>;
    __shared__ Channels<VEC> part[2][ROW_THREADS];
    const Tile tile(channels, rows, chunks);
    Channels<VEC> plain = {}, moment = {};
    if (tile.inside) {
        const i64 from = tile.rows.image * step + tile.channel;
        const Channels<VEC> mean = load_channels<VEC>(means + from);
        const NormGate<P> gate(y, invstd, weight, bias, tile.channel);
#pragma unroll 4
        for (i64 row = tile.rows.first + tile.down; row < tile.rows.last; row += Tile::DOWN) {
            const i64 at = row * channels + tile.channel;
            const Channels<VEC> arriving = load_channels<VEC>(dy + at);
            Channels<VEC> v = load_channels<VEC>(x + at);
#pragma unroll
            for (int k = 0; k < VEC; ++k) v.at[k] -= mean.at[k];
            const Channels<VEC> g = gate.pass(arriving, v, at);
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                plain.at[k] += g.at[k];
                moment.at[k] = fmaf(g.at[k], v.at[k], moment.at[k]);
            }
            if constexpr (P::KEEP != 0) store_channels<VEC>(kept + at, g);
        }
    }
    part[0][threadIdx.x] = plain;
    part[1][threadIdx.x] = moment;
    for (int half = Tile::DOWN / 2; half > 0; half /= 2) {
        __syncthreads();
        if (tile.down < half) {
            const int other = threadIdx.x + half * ACROSS;
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                plain.at[k] += part[0][other].at[k];
                moment.at[k] += part[1][other].at[k];
            }
            part[0][threadIdx.x] = plain;
            part[1][threadIdx.x] = moment;
        }
    }
    if (tile.down != 0 || !tile.inside) return;
    f32* to = partials + 2 * tile.item * channels + tile.channel;
    store_channels<VEC>(to, plain);
    store_channels<VEC>(to + channels, moment);
}
