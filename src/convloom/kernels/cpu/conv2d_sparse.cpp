// All gradients of a convolution behind a 2x2 max-pool, from the outputs whose gradient is not 0.
//
// At most one output in four passed the pool, and a rectifier behind it leaves fewer. For every
// filter the non-zero gradients of a strip are listed with the place of their input patch. Then
//     dw[k] += g * patch      (gather: the gradient of a filter stays in registers over its list)
//     dx patch += g * w[k]    (scatter: the filter stays in registers over its list)
// with RUN = S*C contiguous elements of a row of taps on lanes. Products with a gradient of exactly
// 0 are skipped (so 0 * Inf gives no NaN here); every other value, NaN and Inf too, is passed on.
//
// Item: a fixed chunk of images x a slice of CS channels; it owns its partial of dw and its part of
// dx. dx collects in scratch with its padding (or in place if there is none), is masked and stored.
// Limit: at most a quarter of the dense FLOPs; a load an FMA in gather, load and store in scatter.
// Arguments: x, packed filters, dyp, index, partials, bias partials, dx, N, H, W, chunks, strips.
#include "conv2d_sparse.h"

namespace convloom {

// TILE floats x RT rows where the registers hold them (the gradient's sums, and the filter if dx is
// wanted), else one row and a divisor of the tile.
template <class P>
struct SparseTile {
    static constexpr int whole = P::TILE / LANES, sets = P::NEEDS_DX ? 2 : 1;
    static constexpr bool fits = sets * P::RT * whole + 4 <= VECTOR_REGISTERS;
    static constexpr int rows = fits ? P::RT : 1;
    static constexpr int vectors_for(int v) {
        while (whole % v || (v > 1 && sets * v + 4 > VECTOR_REGISTERS)) v--;
        return v;
    }
    static constexpr int vectors = fits ? whole : vectors_for(whole);
};

// The non-zero gradients of one filter in one strip.
struct List {
    const f32* value;
    const i32* place;
    i64 count;
};

// One tile of one filter against its list: gather into dw, and scatter into dx (DX). Loads bound the
// one and stores the other, so together they cost little more than each alone. MASKED: only the
// first `left` elements of a row exist; the others belong to another pixel, which a non-finite
// gradient must not touch.
template <int ROWS, int NV, bool DX, bool MASKED>
CL_INLINE void walk(const List& list, const f32* x, f32* dx, i64 x_row, f32* dw, const f32* w,
                    i64 w_row, i64 left) {
    vec acc[ROWS][NV], filter[ROWS][NV];
    CL_UNROLL for (int r = 0; r < ROWS; r++)
        CL_UNROLL for (int v = 0; v < NV; v++) {
            acc[r][v] = load(dw + r * w_row + v * LANES);
            if constexpr (DX) filter[r][v] = load(w + r * w_row + v * LANES);
        }
    for (i64 i = 0; i < list.count; i++) {
        const vec g = broadcast(list.value[i]);
        const i64 place = list.place[i];
        CL_UNROLL for (int r = 0; r < ROWS; r++)
            CL_UNROLL for (int v = 0; v < NV; v++) {
                const i64 at = place + r * x_row + v * LANES;
                acc[r][v] = fma(load(x + at), g, acc[r][v]);
                if constexpr (DX) {
                    const vec old = load(dx + at), sum = fma(g, filter[r][v], old);
                    if constexpr (MASKED)
                        store(dx + at,
                              select(lane_index() < broadcast_i32(i32(left) - v * LANES), sum, old));
                    else
                        store(dx + at, sum);
                }
            }
    }
    CL_UNROLL for (int r = 0; r < ROWS; r++)
        CL_UNROLL for (int v = 0; v < NV; v++) store(dw + r * w_row + v * LANES, acc[r][v]);
}

// Distances of input patches, in floats: of neighbouring pool windows, and inside one window.
struct Patches {
    i64 row, col;
    i32 inside[4];
};

// Lists the pixels of a strip of the pooled map whose gradient is not 0, with the places of their
// patches counted from the strip's first window; returns how many. No branch: each entry is
// written, and stays if it is not 0 (NaN is not).

CL_INLINE i64 list_filter(f32* value, i32* place, const f32* dy, const u8* index, i64 pixel,
                          i64 rows, i64 cols, const Patches& patches) {
    i64 count = 0;
    for (i64 p = 0; p < rows; p++) {
        i32 at = i32(p * patches.row);
        for (i64 q = 0; q < cols; q++, at += i32(patches.col)) {
            const f32 g = *dy;
            value[count] = g;
            place[count] = at + patches.inside[*index & 3];
            count += !(g == 0);
            dy += pixel;
            index += pixel;
        }
    }
    return count;
}

// db += the sums over one image's pooled map.
template <bool PLANAR>
CL_INLINE void add_pooled_bias(f32* db, const f32* dy, i64 pixel, i64 k_step, i64 pixels,
                               i64 filters) {
    if constexpr (PLANAR) {
        for (i64 k = 0; k < filters; k++)
            for (i64 i = 0; i < pixels; i++) db[k] += dy[k * k_step + i];
    } else {
        for (i64 k = 0; k < filters; k += LANES) {
            const i64 left = filters - k;
            vec sum[2] = {load_tail(db + k, left), zero()};
            for (i64 i = 0; i < pixels; i++) sum[i & 1] += load_tail(dy + i * pixel + k, left);
            store_tail(db + k, sum[0] + sum[1], left);
        }
    }
}

// dx of one image from its padded sum: crop, mask, store.
template <class P>
static void store_dx(f32* dx, const f32* sum, i64 sum_row, const f32* x, i64 H, i64 W, i64 first) {
    constexpr i64 CT = P::C * P::G;
    if constexpr (P::XROW) {
        for (i64 c = 0; c < P::CS; c++)
            for (i64 h = 0; h < H; h++)
                for (i64 w = 0; w < W; w++) {
                    const i64 at = ((first + c) * H + h) * W + w;
                    const f32 g = sum[(h + P::PH) * sum_row + (w + P::PW) * P::CS + c];
                    dx[at] = P::MASK && x[at] <= 0 ? 0.0f : g;
                }
    } else {
        for (i64 h = 0; h < H; h++)
            for (i64 w = 0; w < W; w++) {
                const f32* from = sum + (h + P::PH) * sum_row + (w + P::PW) * P::CS;
                const i64 at = (h * W + w) * CT + first;
                for (i64 c = 0; c < P::CS; c += LANES) {
                    vec g = load(from + c);
                    if constexpr (P::MASK) g = relu_mask(load_tail(x + at + c, P::CS - c), g);
                    store_tail(dx + at + c, g, P::CS - c);
                }
            }
    }
}

template <class P>
void conv2d_sparse(const Arg* args, long item, Worker* worker) {
    using L = SparseLayout<P>;
    using Tile = SparseTile<P>;
    constexpr int RT = Tile::rows, NV = Tile::vectors;
    constexpr i64 CT = P::C * P::G, STEP = NV * LANES, FILTER_ROW = L::PIECES * L::RUN_PADDED;
    const i64 N = args[7].integer, H = args[8].integer, W = args[9].integer;
    const i64 chunks = args[10].integer, strips = args[11].integer;
    const i64 rows = output_size(H, P::R, P::UH, P::PH, P::DH) / 2;
    const i64 cols = output_size(W, P::S, P::UW, P::PW, P::DW) / 2, plane = rows * cols;
    const i64 chunk = item % chunks, part = item / chunks;
    const i64 slice = part % L::SLICES, group = part / L::SLICES;
    const i64 channel = group * P::C + slice * P::CS;
    const f32* filters = (const f32*)args[1].address + part * L::KG * L::FILTER;
    f32* dw = (f32*)args[4].address + chunk * L::PARTIAL + part * L::KG * L::FILTER;
    f32* db = (f32*)args[5].address + chunk * P::K + group * L::KG;
    fill_zero(dw, L::KG * L::FILTER);
    if (P::BIAS && slice == 0) fill_zero(db, L::KG);

    const Window window{-P::PH, H + 2 * P::PH, -P::PW, W + 2 * P::PW};
    const i64 x_row = window.cols * P::CS;
    const i64 size = round_up(window.rows * x_row + P::TILE, 16);
    f32* staged = (f32*)worker->scratch;
    f32* sum = P::DIRECT ? nullptr : staged + size;
    f32* lists = P::DIRECT ? staged : P::NEEDS_DX ? sum + size : sum;
    const i64 capacity = round_up(ceil_div(rows, strips) * cols + 1, 16);
    f32* values = lists;
    i32* places = (i32*)(lists + L::KG * capacity);
    i64* counts = (i64*)(places + L::KG * capacity);
    const Patches patches{2 * P::UH * x_row, 2 * P::UW * P::CS,
                          {0, i32(P::UW * P::CS), i32(P::UH * x_row),
                           i32(P::UH * x_row + P::UW * P::CS)}};
    const i64 pixel = P::YROW ? 1 : P::K, k_step = P::YROW ? plane : 1;

    for (i64 n = part_begin(N, chunks, chunk); n < part_begin(N, chunks, chunk + 1); n++) {
        const f32* x = (const f32*)args[0].address + n * H * W * CT;
        f32* dx = (f32*)args[6].address + n * H * W * CT;
        const f32* patch = x;
        f32* target = dx;
        if constexpr (!P::DIRECT) {
            stage<P::XROW>(staged, P::CS, Image{x, H, W, CT, channel, P::CS}, window);
            patch = staged;
            target = sum;
        }
        if constexpr (P::NEEDS_DX) fill_zero(target, window.rows * x_row);
        const i64 origin = n * plane * P::K + group * L::KG * k_step;
        if (P::BIAS && slice == 0)
            add_pooled_bias<P::YROW>(db, (const f32*)args[2].address + origin, pixel, k_step, plane,
                                     L::KG);
        for (i64 strip = 0; strip < strips; strip++) {
            const i64 p0 = part_begin(rows, strips, strip), p1 = part_begin(rows, strips, strip + 1);
            for (i64 k = 0; k < L::KG; k++) {
                const i64 at = origin + k * k_step + p0 * cols * pixel;
                const f32* dy = (const f32*)args[2].address + at;
                counts[k] = list_filter(values + k * capacity, places + k * capacity, dy,
                                        (const u8*)args[3].address + at, pixel, p1 - p0, cols,
                                        patches);
            }
            const i64 corner = p0 * patches.row;
            for (i64 r = 0; r < P::R; r += RT)
                for (i64 piece = 0; piece < L::PIECES; piece++)
                    for (i64 t = 0; t < L::RUN_PADDED; t += STEP) {
                        const i64 tap = r * FILTER_ROW + piece * L::RUN_PADDED + t;
                        const i64 at = corner + r * P::DH * x_row + piece * P::DW * P::CS + t;
                        const i64 left = L::RUN - t;
                        const bool masked = P::NEEDS_DX && L::RUN % STEP != 0 && left < STEP;
                        for (i64 k = 0; k < L::KG; k++) {
                            const List list{values + k * capacity, places + k * capacity,
                                            counts[k]};
                            f32* dw_tile = dw + k * L::FILTER + tap;
                            const f32* w_tile = filters + k * L::FILTER + tap;
                            if (masked)
                                walk<RT, NV, P::NEEDS_DX, true>(list, patch + at, target + at,
                                                                P::DH * x_row, dw_tile, w_tile,
                                                                FILTER_ROW, left);
                            else
                                walk<RT, NV, P::NEEDS_DX, false>(list, patch + at, target + at,
                                                                 P::DH * x_row, dw_tile, w_tile,
                                                                 FILTER_ROW, left);
                        }
                    }
        }
        if constexpr (P::NEEDS_DX && !P::DIRECT) {
            store_dx<P>(dx, sum, x_row, x, H, W, channel);
        } else if constexpr (P::NEEDS_DX && P::MASK) {
            for (i64 i = 0; i < H * W * CT; i += LANES)
                store(dx + i, relu_mask(load(x + i), load(dx + i)));
        }
    }
}

}  // namespace convloom
