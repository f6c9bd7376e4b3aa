// Filter gradient (and bias gradient) of a convolution, NHWC, as partial sums over chunks of images.
//
//     dw[k, r, s, c] = sum over n, p, q of dy[n, p, q, k] * x[n, p*u + r*d - pad, ...s, c]
//
// Item: a fixed chunk (of the strips of all images) x a slice of CS input channels x KS filters; it owns its part of
// its chunk's partial, so nothing is shared and the order of every sum is fixed. Where the filters
// are large there is one chunk, and the items split the gradient's own elements.
// Each image goes by in strips of rows that fit in L1/L2: x is staged with its padding (only the
// item's channels), dy by blocks of KB filters unless it lies so already. The register tile is RT
// rows of taps x A contiguous (s, c) x KB filters, summed over the strip's pixels: A*RT broadcasts
// of x and NV loads of dy for A*RT*NV multiply-adds.
// Limit: 2*N*K*P*Q*C*R*S FLOPs; bytes x once a KS block, dy once a slice.
// Arguments: x, dy, index (0 where absent), partials, bias partials (0 where absent), N, H, W,
// chunks, strips.
#include "conv2d_wgrad.h"

namespace convloom {

// Tile of the narrower registers: a divisor of A, and one row of taps.
template <class P>
struct WgradTile {
    static constexpr int whole = P::KB / LANES;
    static constexpr bool fits = whole * P::RT * P::A + whole + 1 <= VECTOR_REGISTERS;
    static constexpr int vectors = fits ? whole : whole % 2 == 0 ? 2 : 1;
    static constexpr int rows = fits ? P::RT : 1;
    static constexpr int run_for(int a) {
        while (P::A % a || (a > 1 && vectors * a + vectors + 1 > VECTOR_REGISTERS)) a--;
        return a;
    }
    static constexpr int run = fits ? P::A : run_for(P::A);
};

// One register tile over a strip: dw += dy * x.
template <int NV, int ROWS, int A, int KB, i64 DW_ROW>
CL_INLINE void wgrad_tile(f32* dw, const f32* x, i64 x_row, i64 x_line, i64 x_pixel, const f32* dy,
                          i64 dy_pixel, i64 rows, i64 cols) {
    vec acc[ROWS * A][NV];
    CL_UNROLL for (int i = 0; i < ROWS * A; i++)
        CL_UNROLL for (int v = 0; v < NV; v++)
            acc[i][v] = load(dw + i / A * DW_ROW + i % A * KB + v * LANES);
    for (i64 p = 0; p < rows; p++) {
        const f32* at[ROWS];
        CL_UNROLL for (int r = 0; r < ROWS; r++) at[r] = x + p * x_line + r * x_row;
        for (i64 q = 0; q < cols; q++) {
            vec g[NV];
            CL_UNROLL for (int v = 0; v < NV; v++) g[v] = load(dy + v * LANES);
            CL_UNROLL for (int i = 0; i < ROWS * A; i++) {
                const vec value = broadcast(at[i / A][i % A]);
                CL_UNROLL for (int v = 0; v < NV; v++) acc[i][v] = fma(value, g[v], acc[i][v]);
            }
            dy += dy_pixel;
            CL_UNROLL for (int r = 0; r < ROWS; r++) {
                at[r] += x_pixel;
                CL_OPAQUE(at[r]);
            }
        }
    }
    CL_UNROLL for (int i = 0; i < ROWS * A; i++)
        CL_UNROLL for (int v = 0; v < NV; v++)
            store(dw + i / A * DW_ROW + i % A * KB + v * LANES, acc[i][v]);
}

// db += the sum of dy over a strip, one vector of filters at a time.
CL_INLINE void add_bias_gradient(f32* db, const f32* dy, i64 pixel, i64 pixels, i64 channels) {
    for (i64 k = 0; k < channels; k += LANES) {
        vec sum[4] = {load(db + k), zero(), zero(), zero()};
        i64 i = 0;
        for (; i + 4 <= pixels; i += 4)
            CL_UNROLL for (int j = 0; j < 4; j++) sum[j] += load(dy + (i + j) * pixel + k);
        for (; i < pixels; i++) sum[0] += load(dy + i * pixel + k);
        store(db + k, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}

template <class P>
void conv2d_wgrad(const Arg* args, long item, Worker* worker) {
    using L = WgradLayout<P>;
    using Tile = WgradTile<P>;
    constexpr int NV = Tile::vectors, A = Tile::run, RT = Tile::rows;
    constexpr i64 CT = P::C * P::G, KSPLIT = ceil_div(L::KG, P::KS);
    const i64 N = args[5].integer, H = args[6].integer, W = args[7].integer;
    const i64 chunks = args[8].integer, strips = args[9].integer;
    const i64 P_ = output_size(H, P::R, P::UH, P::PH, P::DH);
    const i64 Q = output_size(W, P::S, P::UW, P::PW, P::DW);
    const i64 chunk = item % chunks, rest = item / chunks;
    const i64 k0 = rest % KSPLIT * P::KS, k1 = min(k0 + P::KS, L::KG);
    const i64 slice = rest / KSPLIT % L::SLICES, group = rest / KSPLIT / L::SLICES;
    const i64 blocks = ceil_div(k1 - k0, P::KB);

    f32* dw = (f32*)args[3].address + chunk * L::PARTIAL +
              ((group * L::SLICES + slice) * L::BLOCKS + k0 / P::KB) * L::BLOCK;
    fill_zero(dw, blocks * L::BLOCK);
    const bool with_bias = P::BIAS && slice == 0;
    f32* db = (f32*)args[4].address + ((chunk * P::G + group) * L::BLOCKS + k0 / P::KB) * P::KB;
    if (with_bias) fill_zero(db, blocks * P::KB);

    const i64 cols = (Q - 1) * P::UW + (P::S - 1) * P::DW + 1, x_line = cols * P::CS;
    const i64 most = ceil_div(P_, strips);
    f32* staged_x = (f32*)worker->scratch;
    f32* staged_dy = staged_x + round_up(((most - 1) * P::UH + (P::R - 1) * P::DH + 1) * x_line +
                                             P::A, 16);
    for (i64 unit = part_begin(N * strips, chunks, chunk);
         unit < part_begin(N * strips, chunks, chunk + 1); unit++) {
        const i64 n = unit / strips, strip = unit % strips;
        const i64 first = part_begin(P_, strips, strip);
        const i64 rows = part_begin(P_, strips, strip + 1) - first;
        const Window window{first * P::UH - P::PH,
                            (rows - 1) * P::UH + (P::R - 1) * P::DH + 1, -P::PW, cols};
        stage<P::XROW>(staged_x, P::CS,
                       Image{(const f32*)args[0].address + n * H * W * CT, H, W, CT,
                             group * P::C + slice * P::CS, P::CS},
                       window);
        const f32* dy = (const f32*)args[1].address + n * P_ * Q * P::K;
        i64 block_step = P::KB, dy_pixel = P::K;
        if constexpr (P::STAGED) {
            block_step = rows * Q * P::KB;
            dy_pixel = P::KB;
            for (i64 b = 0; b < blocks; b++) {
                const i64 k = group * L::KG + k0 + b * P::KB;
                const i64 count = min(P::KB, k1 - k0 - b * P::KB);
                const Window part{first, rows, 0, Q};
                f32* to = staged_dy + b * block_step;
                if (count < P::KB) fill_zero(to, block_step);
                if constexpr (P::POOL) {
                    const i64 plane = (P_ / 2) * (Q / 2) * P::K;
                    stage_unpooled<P::YROW>(
                        to, P::KB,
                        Image{(const f32*)args[1].address + n * plane, P_ / 2, Q / 2, P::K, k,
                              count},
                        (const u8*)args[2].address + n * plane, part);
                } else {
                    stage<P::YROW>(to, P::KB, Image{dy, P_, Q, P::K, k, count}, part);
                }
            }
            dy = staged_dy;
        } else {
            dy += first * Q * P::K + group * L::KG + k0;
        }
        for (i64 b = 0; b < blocks; b++) {
            if (with_bias)
                add_bias_gradient(db + b * P::KB, dy + b * block_step, dy_pixel, rows * Q,
                                  P::KB);
            for (i64 k = 0; k < P::KB; k += NV * LANES)
                for (i64 r = 0; r < P::R; r += RT)
                    for (i64 piece = 0; piece < L::PIECES; piece++)
                        for (i64 t = 0; t < L::RUN_PADDED; t += A)
                            wgrad_tile<NV, RT, A, P::KB,
                                       L::PIECES * L::RUN_PADDED * P::KB>(
                                dw + b * L::BLOCK +
                                    ((r * L::PIECES + piece) * L::RUN_PADDED + t) * P::KB + k,
                                staged_x + r * P::DH * x_line + piece * P::DW * P::CS + t,
                                P::DH * x_line, P::UH * x_line, P::UW * P::CS,
                                dy + b * block_step + k, dy_pixel, rows, Q);
        }
    }
}

}  // namespace convloom
