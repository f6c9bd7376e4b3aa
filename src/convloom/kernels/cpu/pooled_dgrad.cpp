// Input gradient of a 3x3, stride 1 convolution behind which a 2x2 max-pool stands.
//
// A pool window passes its gradient to one of its four cells, so of four output gradients at most
// one is not zero, and ReLU zeroes more. Against the dense rung only those are multiplied: a
// quarter of the work or less. Against a scatter into memory (9 loads and stores for each value)
// the 4x4 patch of dx that a pool window can reach stays in 16 registers while the filters of all
// its non-zero gradients are added, cell by cell of the window.
//
// Arguments: filters (pooled_pack.cpp), dy (gradient at the pooled map, NHWC), index (winning cell 0..3), x (NHWC,
//     for the ReLU mask, or null), dx (NHWC), H, W, rows of pool windows an item.
// Constants: C, K, PAD_H, PAD_W, MASK.
// An item is a strip of rows of dx of one image. Pool rows are walked downwards with four rows of
// dx in scratch; two of them are complete after each. Within a pool row: a vector of channels, 32
// filters (whose taps fit the L1 cache), then all windows. A dx element sums its terms in the same
// order whatever the strip. Gradients that are exactly 0 are skipped; NaN and Inf are not.
// Limit: 18*C FLOPs and 9*C filter loads from the L1 cache for each non-zero gradient.
#include "mask_bits.h"

namespace convloom {

template <class P>
struct PooledDgrad {
    static constexpr i64 C = P::C, K = P::K;
    static constexpr i64 FILTER_BLOCK = 32;

    const f32 *filters, *dy, *x;
    const u8* index;
    f32* dx;
    i64 h, width, pool_h, pool_w;
    i64 row;       // floats in a padded row of dx
    f32* rows[4];  // padded rows 2*py .. 2*py + 3

    CL_INLINE vec load_c(const f32* p, i64 c) {
        return C % LANES == 0 ? load(p + c) : load_tail(p + c, C - c);
    }
    CL_INLINE void store_c(f32* p, i64 c, vec v) {
        if (C % LANES == 0)
            store(p + c, v);
        else
            store_tail(p + c, v, C - c);
    }

    // Adds the filters of the set bits, seen from cell CELL of the window, to the patch.
    template <int CELL>
    CL_INLINE void add_filters(u64 bits, const f32* grads, const f32* block, vec (&patch)[4][4]) {
        while (bits) {
            const int k = __builtin_ctzll(bits);
            bits &= bits - 1;
            const vec g = broadcast(grads[k]);
            const f32* filter = block + k * 9 * LANES;
            CL_UNROLL for (int r = 0; r < 3; r++)
                CL_UNROLL for (int s = 0; s < 3; s++) {
                    vec& sum = patch[CELL / 2 + r][CELL % 2 + s];
                    sum = fma(load(filter + (r * 3 + s) * LANES), g, sum);
                }
        }
    }

    // Which of ``count`` filters have a gradient that is not zero, for each winning cell.
    static void sort_by_cell(const f32* grads, const u8* cells, i64 count, u64* bits) {
        bits[0] = bits[1] = bits[2] = bits[3] = 0;
        for (i64 k = 0; k < count; k += LANES) {
            vec g;
            ivec cell;
            if (K % LANES == 0 || count - k >= LANES) {
                g = load(grads + k);
                cell = load_bytes(cells + k);
            } else {
                // Through memory: a lane chosen at run time costs the compiler seconds.
                u8 bytes[LANES] = {};
                for (i64 i = 0; i < count - k; i++) bytes[i] = cells[k + i];
                g = load_partial(grads + k, count - k);
                cell = load_bytes(bytes);
            }
            const ivec present = g != zero();
            CL_UNROLL for (int b = 0; b < 4; b++)
                bits[b] |= mask_bits(present & (cell == broadcast_i32(b))) << k;
        }
    }

    // All windows of pool row py.
    void add_pool_row(i64 py) {
        const i64 pooled = py * pool_w * K;
        for (i64 c = 0; c < C; c += LANES) {
            const f32* block = filters + c * K * 9;
            for (i64 k = 0; k < K; k += FILTER_BLOCK)
                add_filter_block(dy + pooled + k, index + pooled + k, block + k * 9 * LANES,
                                 min(K - k, FILTER_BLOCK), c, k == 0);
        }
        for (int i = 2; i < 4; i++)
            fill_zero(rows[i] + (pool_w * 2 + 2) * C, row - (pool_w * 2 + 2) * C);
    }

    // A pool row's windows, one vector of channels and ``count`` filters. ``first``: rows 2 and 3 of
    // scratch hold nothing yet. One copy of this code serves all: unrolled, it is long to compile.
    __attribute__((noinline)) void add_filter_block(const f32* grads, const u8* cells,
                                                    const f32* block, i64 count, i64 c,
                                                    bool first) {
        vec patch[4][4];
        CL_UNROLL for (int i = 0; i < 4; i++)
            CL_UNROLL for (int j = 0; j < 4; j++) patch[i][j] = zero();
        // One step more than there are windows: the last two columns of the patch remain then.
        for (i64 px = 0; px <= pool_w; px++, grads += K, cells += K) {
            u64 bits[4] = {};
            if (px < pool_w) sort_by_cell(grads, cells, count, bits);
            add_filters<0>(bits[0], grads, block, patch);
            add_filters<1>(bits[1], grads, block, patch);
            add_filters<2>(bits[2], grads, block, patch);
            add_filters<3>(bits[3], grads, block, patch);
            flush(px * 2, c, patch, first);
        }
    }

    // Columns col, col + 1 of the patch are complete for this block of filters; the patch moves on
    // by two columns. Rows 0 and 1 hold what the pool row above left.
    __attribute__((always_inline)) void flush(i64 col, i64 c, vec (&patch)[4][4], bool first) {
        CL_UNROLL for (int j = 0; j < 2; j++)
            CL_UNROLL for (int i = 0; i < 4; i++) {
                f32* to = rows[i] + (col + j) * C;
                const bool fresh = first && i >= 2;
                store_c(to, c, fresh ? patch[i][j] : load_c(to, c) + patch[i][j]);
            }
        CL_UNROLL for (int i = 0; i < 4; i++) {
            patch[i][0] = patch[i][2];
            patch[i][1] = patch[i][3];
            patch[i][2] = patch[i][3] = zero();
        }
    }

    // Writes a complete padded row to dx, if it is inside the image and this item's.
    void finish_row(const f32* from, i64 padded, i64 first, i64 last) {
        const i64 y = padded - P::PAD_H;
        if (y < first || y >= last) return;
        const i64 at = y * width * C;
        from += P::PAD_W * C;
        for (i64 i = 0; i < width * C; i += LANES) {
            const i64 left = width * C - i;
            vec value = load_tail(from + i, left);
            if (P::MASK) value = relu_mask(load_tail(x + at + i, left), value);
            store_tail(dx + at + i, value, left);
        }
    }

    // Rows [first, last) of dx.
    void run(i64 first, i64 last) {
        // Pool rows that reach a row: 2*py <= padded row <= 2*py + 3.
        const i64 begin = max(0, ceil_div(max(0, first + P::PAD_H - 3), 2));
        const i64 end = min(pool_h, (last - 1 + P::PAD_H) / 2 + 1);
        fill_zero(rows[0], row);
        fill_zero(rows[1], row);
        i64 padded = 2 * begin;
        for (i64 y = first + P::PAD_H; y < padded; y++) finish_row(rows[0], y, first, last);
        for (i64 py = begin; py < end; py++, padded += 2) {
            add_pool_row(py);
            finish_row(rows[0], padded, first, last);
            finish_row(rows[1], padded + 1, first, last);
            f32 *row0 = rows[0], *row1 = rows[1];
            rows[0] = rows[2];
            rows[1] = rows[3];
            rows[2] = row0;
            rows[3] = row1;
        }
        finish_row(rows[0], padded, first, last);
        finish_row(rows[1], padded + 1, first, last);
        // What lies below the last pool window is reached by nothing.
        fill_zero(rows[0], row);
        for (i64 y = max(padded + 2, first + P::PAD_H); y < last + P::PAD_H; y++)
            finish_row(rows[0], y, first, last);
    }
};

template <class P>
void pooled_dgrad(const Arg* args, long item, Worker* worker) {
    PooledDgrad<P> kernel;
    const i64 h = args[5].integer, width = args[6].integer, strip = args[7].integer;
    kernel.h = h;
    kernel.width = width;
    kernel.pool_h = (h + 2 * P::PAD_H - 2) / 2;
    kernel.pool_w = (width + 2 * P::PAD_W - 2) / 2;
    const i64 strips = ceil_div(h, strip);
    const i64 image = item / strips, first = item % strips * strip;
    const i64 pooled = image * kernel.pool_h * kernel.pool_w * P::K;
    kernel.filters = static_cast<const f32*>(args[0].address);
    kernel.dy = static_cast<const f32*>(args[1].address) + pooled;
    kernel.index = static_cast<const u8*>(args[2].address) + pooled;
    kernel.x = static_cast<const f32*>(args[3].address);
    if (P::MASK) kernel.x += image * h * width * P::C;
    kernel.dx = static_cast<f32*>(args[4].address) + image * h * width * P::C;
    kernel.row = (width + 2 * P::PAD_W) * P::C;
    f32* scratch = reinterpret_cast<f32*>(worker->scratch);
    for (int i = 0; i < 4; i++) kernel.rows[i] = scratch + i * round_up(kernel.row, 16);
    kernel.run(first, min(h, first + strip));
}

}  // namespace convloom
