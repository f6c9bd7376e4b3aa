// dx = a g - b - c (x - mean), by channel, where g is what passes the activation ACT of dy
//
// factors (3, channel): a, b, c. mean advances by `step` from image to image, factors by three times
// as much. A thread keeps its channels and walks the rows of a chunk.
// Against naive: four channels an access, no division, and the mask is applied on the way.
// Limit: 12 bytes of memory traffic an element, 16 where y is read.
#include "device/norm_gate.cuh"

template <class P>
__global__ void __launch_bounds__(ROW_THREADS)
    norm_grad_apply_tiled(const f32* dy, const f32* x, const f32* means, const f32* factors,
                          f32* dx, i64 channels, i64 rows, i64 chunks, i64 step, const f32* y,
                          const f32* invstd, const f32* weight, const f32* bias) {
    constexpr int VEC = P::VEC;
    using Tile = RowTile<P::ACROSS, VEC>;
    const Tile tile(channels, rows, chunks);
    if (!tile.inside) return;
    const i64 image = tile.rows.image * step;
    const Channels<VEC> mean = load_channels<VEC>(means + image + tile.channel);
    const f32* f = factors + 3 * image + tile.channel;
    const Channels<VEC> a = load_channels<VEC>(f), b = load_channels<VEC>(f + channels);
    const Channels<VEC> c = load_channels<VEC>(f + 2 * channels);
    const NormGate<P> gate(y, invstd, weight, bias, tile.channel);
#pragma unroll 4
    for (i64 row = tile.rows.first + tile.down; row < tile.rows.last; row += Tile::DOWN) {
        const i64 at = row * channels + tile.channel;
        const Channels<VEC> arriving = load_channels<VEC>(dy + at);
        Channels<VEC> v = load_channels<VEC>(x + at);
#pragma unroll
        for (int k = 0; k < VEC; ++k) v.at[k] -= mean.at[k];
        Channels<VEC> g = gate.pass(arriving, v, at);
#pragma unroll
        for (int k = 0; k < VEC; ++k)
            g.at[k] = fmaf(a.at[k], g.at[k], -fmaf(c.at[k], v.at[k], b.at[k]));
        store_channels<VEC>(dx + at, g);
    }
}
