// y = (x - mean) * scale [+ bias] [+ z], then the activation ACT, by channel
//
// A thread keeps its channels and walks the rows of a chunk, several of a block side by side.
// Against naive: four channels an access, no division, and what follows the normalisation is done
// on the way.
// Limit: 8 bytes of memory traffic an element, 12 with z.
#include "device/activation.cuh"
#include "device/rows.cuh"

template <class P>
__global__ void __launch_bounds__(ROW_THREADS)
    norm_apply_tiled(const f32* x, const f32* means, const f32* scales, f32* y, i64 channels,
                     i64 rows, i64 chunks, i64 step, const f32* biases, const f32* z) {
    constexpr int VEC = P::VEC;
    using Tile = RowTile<P::ACROSS, VEC>;
    const Tile tile(channels, rows, chunks);
    if (!tile.inside) return;
    const i64 from = tile.rows.image * step + tile.channel;
    const Channels<VEC> mean = load_channels<VEC>(means + from);
    const Channels<VEC> scale = load_channels<VEC>(scales + from);
    Channels<VEC> bias = {};
    if constexpr (P::AFFINE != 0) bias = load_channels<VEC>(biases + tile.channel);
#pragma unroll 4
    for (i64 row = tile.rows.first + tile.down; row < tile.rows.last; row += Tile::DOWN) {
        const i64 at = row * channels + tile.channel;
        Channels<VEC> v = load_channels<VEC>(x + at), added = {};
        if constexpr (P::ADD != 0) added = load_channels<VEC>(z + at);
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            v.at[k] = fmaf(v.at[k] - mean.at[k], scale.at[k], bias.at[k]);
            if constexpr (P::ADD != 0) v.at[k] += added.at[k];
            v.at[k] = activated<P>(v.at[k]);
        }
        store_channels<VEC>(y + at, v);
    }
}
