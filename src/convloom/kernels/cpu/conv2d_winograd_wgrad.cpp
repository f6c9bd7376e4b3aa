// Filter gradient of a 3x3, stride 1 convolution by minimal filtering: the derivative of F(2x2, 3x3)
// with respect to its filters, 16 multiplications where the direct form has 36.
//
//     dU = sum over tiles of (A dY A^T) * (B^T d B),    dW = G^T dU G
// Source: the transpose of the forward form in Lavin and Gray (arXiv 1509.09308), section 4.1.
//
// This kernel makes dU, [16][C][KB], for a chunk of images and a block of KB filters; the sum over
// chunks and the last transform are in conv2d_winograd_reduce.cpp.
//
// Arguments: x, dy (NHWC), partials [block][chunk][16][C][KB], bias partials [block][chunk][KB],
//     N, H, W of x, chunks.
// Constants: C, K, KB (multiples of 16, KB divides K); PAD_H, PAD_W; NV vectors of filters a
//     register tile; TILES a block; TILE_ROWS a staged strip; BIAS.
// An item is one chunk of images and one block of filters; chunks depend on the problem alone.
// Limit: 32*C*K FLOPs a tile at the FMA peak.
#include "winograd.h"

namespace convloom {

// Rows of A (4x2) times two vectors.
CL_INLINE void winograd_gradient_rows(vec y0, vec y1, vec* t) {
    t[0] = y0;
    t[1] = y0 + y1;
    t[2] = y0 - y1;
    t[3] = zero() - y1;
}

template <class P>
struct WinogradWgrad {
    static constexpr i64 C = P::C, KB = P::KB, TILES = P::TILES;
    static constexpr int NV = P::NV;
    // Channels of a register tile: ROWS * NV accumulators.
    static constexpr int ROWS = VECTOR_REGISTERS == 32 ? 8 : 4;

    f32 *v, *d, *stage_x, *stage_dy, *du, *db;

    // A dY A^T of one 2x2 tile.
    void transform_gradient(const f32* dy, i64 row, i64 slot) {
        for (i64 k = 0; k < KB; k += LANES) {
            const vec y00 = load(dy + k), y01 = load(dy + KB + k);
            const vec y10 = load(dy + row + k), y11 = load(dy + row + KB + k);
            if (P::BIAS) store(db + k, load(db + k) + ((y00 + y01) + (y10 + y11)));
            vec left[4], right[4], t[4];
            winograd_gradient_rows(y00, y10, left);
            winograd_gradient_rows(y01, y11, right);
            CL_UNROLL for (int i = 0; i < 4; i++) {
                winograd_gradient_rows(left[i], right[i], t);
                CL_UNROLL for (int j = 0; j < 4; j++)
                    store_aligned(d + ((i * 4 + j) * TILES + slot) * KB + k, t[j]);
            }
        }
    }

    // du[position] += v[position]^T d[position] over ``count`` tiles.
    void multiply(i64 count) {
        for (int position = 0; position < 16; position++)
            for (i64 k = 0; k < KB; k += NV * LANES)
                for (i64 c = 0; c < C; c += ROWS)
                    register_tile(v + position * TILES * C + c, d + position * TILES * KB + k,
                                  du + (position * C + c) * KB + k, count);
    }

    static void register_tile(const f32* in, const f32* grads, f32* out, i64 count) {
        vec sum[ROWS][NV];
        CL_UNROLL for (int r = 0; r < ROWS; r++)
            CL_UNROLL for (int n = 0; n < NV; n++) sum[r][n] = load(out + r * KB + n * LANES);
        for (i64 t = 0; t < count; t++) {
            vec grad[NV];
            CL_UNROLL for (int n = 0; n < NV; n++) grad[n] = load_aligned(grads + t * KB + n * LANES);
            CL_UNROLL for (int r = 0; r < ROWS; r++) {
                const vec value = broadcast(in[t * C + r]);
                CL_UNROLL for (int n = 0; n < NV; n++) sum[r][n] = fma(grad[n], value, sum[r][n]);
            }
        }
        CL_UNROLL for (int r = 0; r < ROWS; r++)
            CL_UNROLL for (int n = 0; n < NV; n++) store(out + r * KB + n * LANES, sum[r][n]);
    }

    // One image; dy starts at this item's first filter.
    void image(const f32* x, const f32* dy, i64 h, i64 w) {
        const i64 out_h = h + 2 * P::PAD_H - 2, out_w = w + 2 * P::PAD_W - 2;
        const i64 tiles_y = ceil_div(out_h, 2), tiles_x = ceil_div(out_w, 2);
        const i64 columns = 2 * tiles_x + 2;
        for (i64 first = 0; first < tiles_y; first += P::TILE_ROWS) {
            const i64 rows = min(P::TILE_ROWS, tiles_y - first);
            winograd_stage<C, C>(x, h, w, 2 * first - P::PAD_H, 2 * rows + 2, P::PAD_W, columns,
                              stage_x);
            stage_gradient(dy, out_h, out_w, 2 * first, 2 * rows, 2 * tiles_x);
            for (i64 t0 = 0; t0 < rows * tiles_x; t0 += TILES) {
                const i64 count = min(TILES, rows * tiles_x - t0);
                for (i64 i = 0; i < count; i++) {
                    const i64 ty = (t0 + i) / tiles_x, tx = (t0 + i) % tiles_x;
                    winograd_input<C, C>(stage_x + (2 * ty * columns + 2 * tx) * C, columns * C,
                                      v + i * C, TILES * C);
                    transform_gradient(stage_dy + (2 * ty * 2 * tiles_x + 2 * tx) * KB,
                                       2 * tiles_x * KB, i);
                }
                multiply(count);
            }
        }
    }

    // Rows of dy, KB of its K filters; zeros beyond the last row and column.
    void stage_gradient(const f32* dy, i64 out_h, i64 out_w, i64 first, i64 rows, i64 columns) {
        for (i64 i = 0; i < rows; i++) {
            f32* to = stage_dy + i * columns * KB;
            const i64 inside = first + i < out_h ? out_w : 0;
            for (i64 q = 0; q < inside; q++)
                copy(to + q * KB, dy + ((first + i) * out_w + q) * P::K, KB);
            fill_zero(to + inside * KB, (columns - inside) * KB);
        }
    }
};

template <class P>
void conv2d_winograd_wgrad(const Arg* args, long item, Worker* worker) {
    using Kernel = WinogradWgrad<P>;
    constexpr i64 C = P::C, K = P::K, KB = P::KB;
    const i64 n = args[4].integer, h = args[5].integer, w = args[6].integer;
    const i64 chunks = args[7].integer;
    const i64 block = item / chunks, chunk = item % chunks;
    const i64 out_h = h + 2 * P::PAD_H - 2, out_w = w + 2 * P::PAD_W - 2;
    const i64 columns = 2 * ceil_div(out_w, 2) + 2;

    Kernel kernel;
    f32* scratch = reinterpret_cast<f32*>(worker->scratch);
    kernel.v = scratch;
    kernel.d = kernel.v + 16 * P::TILES * C;
    kernel.stage_x = kernel.d + 16 * P::TILES * KB;
    kernel.stage_dy = kernel.stage_x + (2 * P::TILE_ROWS + 2) * columns * C;
    kernel.du = static_cast<f32*>(args[2].address) + item * 16 * C * KB;
    kernel.db = static_cast<f32*>(args[3].address) + item * KB;
    fill_zero(kernel.du, 16 * C * KB);
    if (P::BIAS) fill_zero(kernel.db, KB);
    const f32* x = static_cast<const f32*>(args[0].address);
    const f32* dy = static_cast<const f32*>(args[1].address) + block * KB;
    for (i64 i = n * chunk / chunks; i < n * (chunk + 1) / chunks; i++)
        kernel.image(x + i * h * w * C, dy + i * out_h * out_w * K, h, w);
}

}  // namespace convloom
