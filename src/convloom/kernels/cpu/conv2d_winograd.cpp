// Convolution of stride 1 by minimal filtering, F(2x2, 3x3): 16 multiplications where the direct
// form of a 3x3 filter has 36. A larger filter is cut into 3x3 ones, each seeing the image from its
// own offset, whose products are summed before the inverse transform: 64 for 100 at 5x5. Bias, ReLU, a 2x2 max-pool (whose window is exactly one output tile) or a
// ReLU mask ride in the epilogue. Serves forward passes and, with reversed filters, input gradients.
//
//     Y = A^T [ (G g G^T) * (B^T d B) ] A        d: 4x4 input tile, Y: 2x2 output tile
// Source: Lavin and Gray, "Fast algorithms for convolutional neural networks" (arXiv 1509.09308).
//
// Against the direct rung: 2.25 times fewer multiplications, for 80 additions a tile and channel
// vector. Rounding differs (a few ulps of the largest term); small integers stay exact. A tile
// whose result is not finite is computed again by the direct form, because an Inf in one corner
// would otherwise spoil outputs that never see it.
//
// Arguments: x (NHWC), u and plain (winograd_pack.cpp), bias or null, y (NHWC), index or null
//     (place of the maximum in its window), a (NHWC, of MASK) or null, H, W of x.
// Constants: C channels and K filters of each of G groups, multiples of 16; R, S; PAD_H, PAD_W; NV
//     vectors of filters a register tile; TILES a block (multiple of the register tile's rows);
//     TILE_ROWS an item; STAGE, BIAS, ACT (activation.h), POOL, MASK.
// An item is TILE_ROWS rows of tiles of one image and group. It stages padded input rows if STAGE, then works
// in blocks of TILES tiles: transform to v[16][TILES][E] (E: channels of all pieces), 16 products m = v u, inverse transform.
// Limit: 32*E*K FLOPs a tile at the FMA peak; v and m should stay in the L2 cache.
#include "activation.h"
#include "winograd.h"

namespace convloom {

template <class P>
struct Winograd {
    static constexpr i64 C = P::C, K = P::K, TILES = P::TILES;
    // 3x3 pieces of a filter, and the channels of all: piece (a, b) sees the image from (3a, 3b) on.
    static constexpr i64 A = ceil_div(P::R, 3), B = ceil_div(P::S, 3), E = A * B * C;
    static constexpr i64 KT = P::G * K;
    static constexpr i64 PIXEL = P::STAGE ? C : P::G * C;  // floats from one pixel to the next
    static constexpr int NV = P::NV;
    static constexpr i64 WIDTH = NV * LANES;
    // Rows of the register tile: NV * ROWS accumulators, NV filters and one broadcast.
    static constexpr int ROWS = VECTOR_REGISTERS == 32 ? (NV == 2 ? 12 : 24) : (NV == 2 ? 6 : 12);

    const f32 *x, *u, *plain, *bias, *a;
    f32* y;
    u8* index;
    i64 out_h, out_w;       // output of the convolution
    i64 tiles_x, first_row; // tiles in a row; first row of tiles of this item
    i64 row;                // floats from one input row to the next
    f32 *v, *m;
    vec bad;                // 0, or NaN once any result was not finite

    void run(i64 tiles) {
        for (i64 t = 0; t < tiles; t += TILES) {
            const i64 count = min(TILES, tiles - t);
            bad = zero();
            for (i64 i = 0; i < count; i++) transform_input(t + i, i);
            multiply(count);
            for (i64 i = 0; i < count; i++) transform_output(t + i, i);
            const f32 sum = horizontal_sum(bad);
            if (sum != sum)
                for (i64 i = 0; i < count; i++) direct(t + i);
        }
    }

    const f32* tile_input(i64 tile) const {
        return x + tile / tiles_x * 2 * row + tile % tiles_x * 2 * PIXEL;
    }

    void transform_input(i64 tile, i64 slot) {
        for (i64 a = 0; a < A; a++)
            for (i64 b = 0; b < B; b++)
                winograd_input<C, PIXEL>(tile_input(tile) + 3 * a * row + 3 * b * PIXEL, row,
                                         v + slot * E + (a * B + b) * C, TILES * E);
    }

    // m[position][block of filters][tile][WIDTH] = v[position] u[position].
    void multiply(i64 count) {
        for (int position = 0; position < 16; position++)
            for (i64 block = 0; block < K / WIDTH; block++) {
                const f32* filters = u + (position * (K / WIDTH) + block) * E * WIDTH;
                f32* out = m + (position * (K / WIDTH) + block) * TILES * WIDTH;
                for (i64 t = 0; t < count; t += ROWS)
                    register_tile(v + (position * TILES + t) * E, filters, out + t * WIDTH);
            }
    }

    static void register_tile(const f32* in, const f32* filters, f32* out) {
        vec sum[ROWS][NV];
        CL_UNROLL for (int r = 0; r < ROWS; r++)
            CL_UNROLL for (int n = 0; n < NV; n++) sum[r][n] = zero();
        for (i64 c = 0; c < E; c++) {
            vec filter[NV];
            CL_UNROLL for (int n = 0; n < NV; n++)
                filter[n] = load_aligned(filters + c * WIDTH + n * LANES);
            CL_UNROLL for (int r = 0; r < ROWS; r++) {
                const vec value = broadcast(in[r * E + c]);
                CL_UNROLL for (int n = 0; n < NV; n++)
                    sum[r][n] = fma(filter[n], value, sum[r][n]);
            }
        }
        CL_UNROLL for (int r = 0; r < ROWS; r++)
            CL_UNROLL for (int n = 0; n < NV; n++)
                store_aligned(out + r * WIDTH + n * LANES, sum[r][n]);
    }

    void transform_output(i64 tile, i64 slot) {
        for (i64 k = 0; k < K; k += LANES) {
            const f32* from = m + (k / WIDTH * TILES + slot) * WIDTH + k % WIDTH;
            constexpr i64 STEP = TILES * K;
            vec rows[2][4];
            CL_UNROLL for (int j = 0; j < 4; j++) {
                const vec m0 = load_aligned(from + j * STEP);
                const vec m1 = load_aligned(from + (4 + j) * STEP);
                const vec m2 = load_aligned(from + (8 + j) * STEP);
                const vec m3 = load_aligned(from + (12 + j) * STEP);
                rows[0][j] = m0 + m1 + m2;
                rows[1][j] = m1 - m2 - m3;
            }
            vec out[4];
            CL_UNROLL for (int i = 0; i < 2; i++) {
                out[i * 2] = rows[i][0] + rows[i][1] + rows[i][2];
                out[i * 2 + 1] = rows[i][1] - rows[i][2] - rows[i][3];
            }
            const vec sum = (out[0] + out[1]) + (out[2] + out[3]);
            bad = bad + (sum - sum);
            finish(tile, k, out);
        }
    }

    // The same tile without transforms, where some value is Inf or NaN.
    void direct(i64 tile) {
        const f32* d = tile_input(tile);
        for (i64 k = 0; k < K; k += LANES) {
            vec out[4];
            for (int p = 0; p < 4; p++) {
                out[p] = zero();
                for (i64 r = 0; r < P::R; r++)
                    for (i64 s = 0; s < P::S; s++) {
                        const f32* from = d + (p / 2 + r) * row + (p % 2 + s) * PIXEL;
                        const i64 piece = r / 3 * B + s / 3, tap = r % 3 * 3 + s % 3;
                        const f32* filters = plain + (tap * E + piece * C) * K + k;
                        for (i64 c = 0; c < C; c++)
                            out[p] = fma(load(filters + c * K), broadcast(from[c]), out[p]);
                    }
            }
            finish(tile, k, out);
        }
    }

    // Epilogue of one tile and one vector of filters.
    void finish(i64 tile, i64 k, vec* out) {
        const i64 ty = first_row + tile / tiles_x, tx = tile % tiles_x;
        if (P::BIAS) {
            const vec b = load(bias + k);
            CL_UNROLL for (int p = 0; p < 4; p++) out[p] = out[p] + b;
        }
        CL_UNROLL for (int p = 0; p < 4; p++) out[p] = activated<P>(out[p]);
        if (P::POOL) {
            vec best = out[0];
            ivec place = ivec{};
            CL_UNROLL for (int p = 1; p < 4; p++) {
                const ivec wins = replaces(out[p], best);
                best = select(wins, out[p], best);
                place = select_i32(wins, broadcast_i32(p), place);
            }
            const i64 at = (ty * (out_w / 2) + tx) * KT + k;
            store(y + at, best);
            if (index) store_bytes(index + at, place, LANES);
            return;
        }
        CL_UNROLL for (int p = 0; p < 4; p++) {
            const i64 oy = ty * 2 + p / 2, ox = tx * 2 + p % 2;
            if (P::STAGE && (oy >= out_h || ox >= out_w)) continue;
            const i64 at = (oy * out_w + ox) * KT + k;
            store(y + at, P::MASK ? masked<P>(load(a + at), out[p]) : out[p]);
        }
    }
};

template <class P>
void conv2d_winograd(const Arg* args, long item, Worker* worker) {
    using Kernel = Winograd<P>;
    constexpr i64 C = P::C, K = P::K, E = Kernel::E, KT = Kernel::KT, CT = P::G * C;
    const i64 h = args[7].integer, w = args[8].integer;
    Kernel kernel;
    kernel.out_h = h + 2 * P::PAD_H - (P::R - 1);
    kernel.out_w = w + 2 * P::PAD_W - (P::S - 1);
    // A pool drops an odd last row or column; without one it is half a tile.
    const i64 extra = P::POOL ? 0 : 1;
    const i64 tiles_y = (kernel.out_h + extra) / 2;
    kernel.tiles_x = (kernel.out_w + extra) / 2;
    const i64 strips = ceil_div(tiles_y, P::TILE_ROWS);
    const i64 group = item % P::G, image = item / P::G / strips;
    kernel.first_row = item / P::G % strips * P::TILE_ROWS;
    const i64 rows = min(P::TILE_ROWS, tiles_y - kernel.first_row);

    const i64 out_image = kernel.out_h * kernel.out_w * KT;
    const i64 stored = P::POOL ? (kernel.out_h / 2) * (kernel.out_w / 2) * KT : out_image;
    kernel.u = static_cast<const f32*>(args[1].address) + group * 16 * E * K;
    kernel.plain = static_cast<const f32*>(args[2].address) + group * 9 * E * K;
    kernel.bias = static_cast<const f32*>(args[3].address) + (P::BIAS ? group * K : 0);
    kernel.y = static_cast<f32*>(args[4].address) + image * stored + group * K;
    kernel.index = static_cast<u8*>(args[5].address);
    if (kernel.index) kernel.index += image * stored + group * K;
    kernel.a = static_cast<const f32*>(args[6].address);
    if (kernel.a) kernel.a += image * out_image + group * K;

    f32* scratch = reinterpret_cast<f32*>(worker->scratch);
    kernel.v = scratch;
    kernel.m = scratch + 16 * P::TILES * E;
    const f32* x = static_cast<const f32*>(args[0].address) + image * h * w * CT + group * C;
    if (P::STAGE) {
        f32* stage = kernel.m + 16 * P::TILES * K;
        // Pieces beyond the first look up to 3 * (A - 1) rows and 3 * (B - 1) columns further.
        const i64 columns = 2 * kernel.tiles_x + 2 + 3 * (Kernel::B - 1);
        kernel.row = columns * C;
        kernel.x = stage;
        winograd_stage<C, CT>(x, h, w, 2 * kernel.first_row - P::PAD_H,
                              2 * rows + 2 + 3 * (Kernel::A - 1), P::PAD_W, columns, stage);
    } else {
        kernel.row = w * CT;
        kernel.x = x + 2 * kernel.first_row * kernel.row;
    }
    kernel.run(rows * kernel.tiles_x);
}

}  // namespace convloom
