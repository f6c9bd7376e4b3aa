// Adds the chunks' dU of conv2d_winograd_wgrad.cpp in order and transforms: dW = G^T dU G.
//
// A filter gradient that is not finite is computed again by the direct form: the transforms mix the
// taps, and an Inf of one would spoil the others.
//
// Arguments: partials, bias partials, dw (KRSC), db or null, x, dy (NHWC), N, H, W of x, chunks.
// Constants: C, K, KB, PAD_H, PAD_W, BIAS. An item is 16 filters.
// Limit: memory, 64 bytes of every chunk's partials for each channel and filter.
#include "winograd.h"

namespace convloom {

// Rows of G^T (3x4) times four vectors.
CL_INLINE void winograd_tap_rows(const vec* u, vec* t) {
    const vec half = broadcast(0.5f);
    const vec sum = (u[1] + u[2]) * half;
    t[0] = u[0] + sum;
    t[1] = (u[1] - u[2]) * half;
    t[2] = sum + u[3];
}

template <class P>
struct WinogradReduce {
    static constexpr i64 C = P::C, K = P::K, KB = P::KB;

    const f32 *partials, *x, *dy;
    f32* dw;
    i64 n, h, w, chunks;
    f32 square[9][16][16];  // [tap][filter][channel]

    // All taps of channel c for LANES filters, of which the first is ``k``.
    void taps(i64 k, i64 c, vec (&g)[9]) {
        const f32* from = partials + (k / KB * chunks * 16 * C + c) * KB + k % KB;
        vec u[4][4], rows[3][4], column[4], t[3];
        for (int p = 0; p < 16; p++) {
            vec sum = zero();
            for (i64 i = 0; i < chunks; i++) sum = sum + load(from + (i * 16 + p) * C * KB);
            u[p / 4][p % 4] = sum;
        }
        for (int j = 0; j < 4; j++) {
            for (int i = 0; i < 4; i++) column[i] = u[i][j];
            winograd_tap_rows(column, t);
            for (int i = 0; i < 3; i++) rows[i][j] = t[i];
        }
        vec spoilt = zero();
        for (int i = 0; i < 3; i++) {
            winograd_tap_rows(rows[i], t);
            for (int j = 0; j < 3; j++) {
                g[i * 3 + j] = t[j];
                spoilt = spoilt + (t[j] - t[j]);
            }
        }
        const f32 bad = horizontal_sum(spoilt);
        if (bad != bad) direct(k, c, g);
    }

    // The same taps, product by product; padding multiplies by zero, as it does above.
    void direct(i64 k, i64 c, vec (&g)[9]) {
        const i64 out_h = h + 2 * P::PAD_H - 2, out_w = w + 2 * P::PAD_W - 2;
        for (int tap = 0; tap < 9; tap++) g[tap] = zero();
        for (i64 i = 0; i < n; i++)
            for (i64 p = 0; p < out_h; p++)
                for (i64 q = 0; q < out_w; q++) {
                    const vec grad = load(dy + ((i * out_h + p) * out_w + q) * K + k);
                    for (int tap = 0; tap < 9; tap++) {
                        const i64 y = p + tap / 3 - P::PAD_H, z = q + tap % 3 - P::PAD_W;
                        const bool inside = y >= 0 && y < h && z >= 0 && z < w;
                        const f32 value = inside ? x[((i * h + y) * w + z) * C + c] : 0.0f;
                        g[tap] = fma(grad, broadcast(value), g[tap]);
                    }
                }
    }

    void run(i64 first) {
        for (i64 c0 = 0; c0 < C; c0 += 16) {
            for (int c = 0; c < 16; c++)
                for (int k = 0; k < 16; k += LANES) {
                    vec g[9];
                    taps(first + k, c0 + c, g);
                    for (int tap = 0; tap < 9; tap++)
                        for (int i = 0; i < LANES; i++) square[tap][k + i][c] = g[tap][i];
                }
            for (int k = 0; k < 16; k++)
                for (int tap = 0; tap < 9; tap++)
                    copy(dw + ((first + k) * 9 + tap) * C + c0, square[tap][k], 16);
        }
    }
};

template <class P>
void conv2d_winograd_reduce(const Arg* args, long item, Worker*) {
    WinogradReduce<P> kernel;
    const i64 first = item * 16;
    kernel.partials = static_cast<const f32*>(args[0].address);
    kernel.dw = static_cast<f32*>(args[2].address);
    kernel.x = static_cast<const f32*>(args[4].address);
    kernel.dy = static_cast<const f32*>(args[5].address);
    kernel.n = args[6].integer;
    kernel.h = args[7].integer;
    kernel.w = args[8].integer;
    kernel.chunks = args[9].integer;
    kernel.run(first);
    if (P::BIAS) {
        const f32* bias = static_cast<const f32*>(args[1].address);
        f32* db = static_cast<f32*>(args[3].address);
        for (i64 k = first; k < first + 16; k += LANES) {
            vec sum = zero();
            for (i64 i = 0; i < kernel.chunks; i++)
                sum = sum + load(bias + (k / P::KB * kernel.chunks + i) * P::KB + k % P::KB);
            store(db + k, sum);
        }
    }
}

}  // namespace convloom
