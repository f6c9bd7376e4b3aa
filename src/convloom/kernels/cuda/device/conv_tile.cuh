// A convolution and its gradients as products of tiles: operands are gathered as tiles are loaded,
// so the matrix of patches is never stored (implicit matrix product).
//
// Constants are those of device/conv.cuh, and POOL: 1 where 2x2 pooling of stride 2 follows.
// Output pixels are numbered image by image in row-major order, or with POOL window by window, the
// four cells of a window next to each other: a thread of a tile then holds whole windows.
#pragma once

#include "device/activation.cuh"
#include "device/conv.cuh"
#include "device/pool.cuh"
#include "device/tile.cuh"

// An output pixel inside its image, or a tap inside its filter.
struct Pixel {
    i32 row, col;
};

template <class P>
struct Pixels {
    // Pixels of an image that take part; with POOL those that overhang the last window do not.
    static constexpr i64 COUNT =
        P::POOL != 0 ? Conv<P>::POOL_ROWS * Conv<P>::POOL_COLS * 4 : P::OH * P::OW;

    __device__ static Pixel at(u32 i) {
        if constexpr (P::POOL != 0) {
            const u32 window = i / 4, cell = i % 4;
            constexpr u32 cols = Conv<P>::POOL_COLS > 0 ? Conv<P>::POOL_COLS : 1;
            return {i32(window / cols * 2 + cell / 2), i32(window % cols * 2 + cell % 2)};
        } else {
            return {i32(i / u32(P::OW)), i32(i % u32(P::OW))};
        }
    }
};

// Sets to 0 what a window did not take from its cell number `cell`.
template <int VEC>
__device__ __forceinline__ void keep_winners(f32 (&value)[VEC], const u8* index, i64 offset,
                                             i32 cell, bool inside) {
    u32 winners = 0;  // one a byte
    if constexpr (VEC == 4)
        winners = inside ? *reinterpret_cast<const u32*>(index + offset) : 0;
    else
        winners = inside ? index[offset] : 0;
#pragma unroll
    for (int v = 0; v < VEC; ++v)
        if ((winners >> 8 * v & 255) != u32(cell)) value[v] = 0.0f;
}

// Offsets inside one image; the place may be nonsense.
template <class P>
__device__ __forceinline__ auto x_within(i32 channel, i32 row, i32 col) {
    return offset_within<Conv<P>::CHANNELS, P::H, P::W, P::XROW != 0>(channel, row, col);
}
template <class P>
__device__ __forceinline__ auto y_within(i32 filter, i32 row, i32 col) {
    return offset_within<P::K, P::OH, P::OW, P::YROW != 0>(filter, row, col);
}
template <class P>
__device__ __forceinline__ auto pooled_within(i32 filter, i32 row, i32 col) {
    return offset_within<P::K, Conv<P>::POOL_ROWS, Conv<P>::POOL_COLS, P::YROW != 0>(filter, row,
                                                                                    col);
}
template <class P>
__device__ __forceinline__ auto w_within(i32 channel, i32 r, i32 s) {
    return offset_within<P::C, P::R, P::S, P::WROW != 0>(channel, r, s);
}

// What tap number `tap` of a filter, in (r, s, c) order, sees from a window that begins at (row, col)
// of an image of one group; `from` is where that lies, or would.
template <class P>
__device__ __forceinline__ f32 tap_of(const f32* from, i32 row, i32 col, int tap) {
    const i32 c = tap % int(P::C), r = tap / int(P::C) / int(P::S) * i32(P::DH);
    const i32 s = tap / int(P::C) % int(P::S) * i32(P::DW);
    const bool inside = (P::PH == 0 || (row + r >= 0 && row + r < P::H)) &&
                        (P::PW == 0 || (col + s >= 0 && col + s < P::W));
    return inside ? from[x_within<P>(c, r, s)] : 0.0f;
}

// A place that no tap reaches from within the image.
constexpr i32 FAR_OUT = -(1 << 30);

// Forward, left: row = output pixel of the batch, depth = (r, s, c): the patch it sees.
template <class P>
struct ConvPatches {
    static constexpr int VEC = P::XROW == 0 && P::C % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = VEC == 4;
    struct Place {
        i64 image;     // offset of its first element, at the group's first channel
        i32 row, col;  // of tap (0, 0)
    };

    const f32* data;  // x
    i64 n, group;

    __device__ Place place(i64 row) const {
        const i64 image = row / Pixels<P>::COUNT;
        if (image >= n) return {0, FAR_OUT, FAR_OUT};
        const Pixel at = Pixels<P>::at(u32(row % Pixels<P>::COUNT));
        return {Conv<P>::x_offset(image, group * P::C, 0, 0),
                i32(at.row * P::UH - P::PH), i32(at.col * P::UW - P::PW)};
    }
    // Where an element lies; false if there is none.
    __device__ bool find(const Place& at, i32 k, i64& offset) const {
        const u32 tap = u32(k) / u32(P::C), c = u32(k) % u32(P::C);
        const i32 row = at.row + i32(tap / u32(P::S)) * i32(P::DH);
        const i32 col = at.col + i32(tap % u32(P::S)) * i32(P::DW);
        offset = at.image + x_within<P>(i32(c), row, col);
        return k < Conv<P>::DEPTH && row >= 0 && row < P::H && col >= 0 && col < P::W;
    }
    __device__ void load(const Place& at, i32 k, f32 (&value)[VEC]) const {
        i64 offset;
        const bool inside = find(at, k, offset);
        load_or_zero(value, data, offset, inside);
    }
};

// Forward, right: row = filter of the group, depth = (r, s, c).
template <class P>
struct ConvFilters {
    static constexpr int VEC = P::WROW == 0 && P::C % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = true;
    using Place = i64;  // offset of the filter, or ABSENT

    const f32* data;  // w
    i64 group;

    __device__ Place place(i64 filter) const {
        constexpr i64 count = Conv<P>::GROUP;
        return filter < count ? (group * count + filter) * Conv<P>::DEPTH : ABSENT;
    }
    // Where an element lies; false if there is none.
    __device__ bool find(const Place& filter, i32 k, i64& offset) const {
        offset = filter + k;  // (r, s, c) is the order of memory
        if constexpr (P::WROW != 0) {
            const u32 tap = u32(k) / u32(P::C);
            offset = filter + w_within<P>(i32(u32(k) % u32(P::C)), i32(tap / u32(P::S)),
                                          i32(tap % u32(P::S)));
        }
        return filter != ABSENT && k < Conv<P>::DEPTH;
    }
    __device__ void load(const Place& filter, i32 k, f32 (&value)[VEC]) const {
        i64 offset;
        const bool inside = find(filter, k, offset);
        load_or_zero(value, data, offset, inside);
    }
};

// Forward: bias, activation (ACT) and pool (POOL), then the outputs to memory. T places the
// thread's sums in the tile.
template <class P, class T>
__device__ __forceinline__ void store_outputs(f32 (&sum)[T::TM][T::TN], i64 first_row,
                                              i64 first_col, i64 group, const f32* bias, f32* y,
                                              u8* index, i64 n) {
    constexpr i64 GROUP = Conv<P>::GROUP;
#pragma unroll
    for (int j = 0; j < T::TN; ++j) {
        const i64 col = first_col + T::col(j);
        const f32 add = P::BIAS != 0 && col < GROUP ? bias[group * GROUP + col] : 0.0f;
#pragma unroll
        for (int i = 0; i < T::TM; ++i) {
            if (P::BIAS != 0) sum[i][j] += add;
            sum[i][j] = activated<P>(sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < T::TM; i += P::POOL != 0 ? 4 : 1) {
        const i64 row = first_row + T::row(i), image = row / Pixels<P>::COUNT;
        if (image >= n) continue;
        const Pixel at = Pixels<P>::at(u32(row % Pixels<P>::COUNT));
        if constexpr (P::POOL == 0 && P::YROW == 0 && T::TOGETHER) {
#pragma unroll
            for (int j = 0; j < T::TN; j += 4) {
                const i64 col = first_col + T::col(j), filter = group * GROUP + col;
                store_fours<GROUP % 4 == 0>(y + Conv<P>::y_offset(image, filter, at.row, at.col),
                                            &sum[i][j], col, GROUP);
            }
            continue;
        }
#pragma unroll
        for (int j = 0; j < T::TN; ++j) {
            const i64 col = first_col + T::col(j), filter = group * GROUP + col;
            if (col >= GROUP) continue;
            if constexpr (P::POOL == 0) {
                y[Conv<P>::y_offset(image, filter, at.row, at.col)] = sum[i][j];
            } else {
                f32 best = sum[i][j];
                u8 winner = 0;
#pragma unroll
                for (int cell = 1; cell < 4; ++cell) {
                    if (!replaces(sum[i + cell][j], best)) continue;
                    best = sum[i + cell][j];
                    winner = u8(cell);
                }
                const i64 to = Conv<P>::pooled_offset(image, filter, at.row / 2, at.col / 2);
                y[to] = best;
                index[to] = winner;
            }
        }
    }
}

// The taps of one axis that an input position of a residue class modulo the stride can have met:
// first, first + STEP, …; `count` of them.
template <i64 TAPS, i64 STRIDE, i64 DILATION, i64 PADDING>
struct MetTaps {
    __host__ __device__ static constexpr i32 divisor(i32 a, i32 b) {
        return b == 0 ? a : divisor(b, a % b);
    }
    static constexpr i32 STEP = i32(STRIDE) / divisor(i32(STRIDE), i32(DILATION % STRIDE));

    i32 first, count;

    __device__ static MetTaps of(i32 residue) {
        for (i32 tap = 0; tap < TAPS && tap < STEP; ++tap)
            if ((residue + PADDING - tap * DILATION) % STRIDE == 0)
                return {tap, i32((TAPS - 1 - tap) / STEP + 1)};
        return {0, 0};
    }
};

// What a block of the input gradient works on: inputs of one residue class modulo the stride have
// met the same taps.
template <class P>
struct ResidueClass {
    using Rows = MetTaps<P::R, P::UH, P::DH, P::PH>;
    using Cols = MetTaps<P::S, P::UW, P::DW, P::PW>;
    static constexpr i64 COUNT = P::UH * P::UW;
    // Inputs of a class in an image, for the largest class.
    static constexpr i64 HEIGHT = ceil_div(P::H, P::UH), WIDTH = ceil_div(P::W, P::UW);

    i32 row, col;
    Rows rows;
    Cols cols;

    __device__ static ResidueClass of(i64 number) {
        const i32 row = i32(number / P::UW), col = i32(number % P::UW);
        return {row, col, Rows::of(row), Cols::of(col)};
    }
    __device__ i32 taps() const { return rows.count * cols.count; }

    // The tap (r, s) with a number below taps().
    __device__ Pixel tap(u32 number) const {
        // With a stride of 1 every class has all taps: a division by a constant.
        const u32 across = P::UW == 1 ? u32(P::S) : u32(greatest(cols.count, 1));
        return {rows.first + i32(number / across) * Rows::STEP,
                cols.first + i32(number % across) * Cols::STEP};
    }
};

// Input gradient, left: row = input of the class, depth = (tap, filter): the outputs it met.
template <class P>
struct ConvOutputGradients {
    static constexpr int VEC = P::YROW == 0 && Conv<P>::GROUP % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = VEC == 4;
    struct Place {
        i64 image;  // offset of its gradient, at the group's first filter
        i32 row, col;  // of the output that tap (0, 0) met, times the stride
    };

    const f32* dy;
    const u8* index;
    i64 n, group;
    ResidueClass<P> part;

    __device__ Place place(i64 i) const {
        using Class = ResidueClass<P>;
        const i64 image = i / (Class::HEIGHT * Class::WIDTH);
        const u32 rest = u32(i % (Class::HEIGHT * Class::WIDTH));
        if (image >= n) return {0, FAR_OUT, FAR_OUT};
        const i64 filter = group * Conv<P>::GROUP;
        const i64 from = P::POOL != 0 ? Conv<P>::pooled_offset(image, filter, 0, 0)
                                      : Conv<P>::y_offset(image, filter, 0, 0);
        return {from, i32(rest / u32(Class::WIDTH) * P::UH + part.row + P::PH),
                i32(rest % u32(Class::WIDTH) * P::UW + part.col + P::PW)};
    }
    __device__ void load(const Place& at, i32 k, f32 (&value)[VEC]) const {
        constexpr u32 filters = Conv<P>::GROUP;
        const u32 tap = u32(k) / filters, filter = u32(k) % filters;
        const Pixel met = part.tap(tap);
        const i32 row = at.row - met.row * i32(P::DH), col = at.col - met.col * i32(P::DW);
        bool inside = i32(tap) < part.taps() && row >= 0 && col >= 0;
        const i32 p = row / i32(P::UH), q = col / i32(P::UW);
        if constexpr (P::POOL != 0) {
            inside = inside && p / 2 < Conv<P>::POOL_ROWS && q / 2 < Conv<P>::POOL_COLS;
            const i64 from = at.image + pooled_within<P>(i32(filter), p / 2, q / 2);
            load_or_zero(value, dy, from, inside);
            keep_winners(value, index, from, 2 * (p % 2) + q % 2, inside);
        } else {
            inside = inside && p < P::OH && q < P::OW;
            load_or_zero(value, dy, at.image + y_within<P>(i32(filter), p, q), inside);
        }
    }
};

// Input gradient, right: row = channel of the group, depth = (tap, filter).
template <class P>
struct ConvFiltersByChannel {
    static constexpr int VEC = P::WROW == 0 && P::C % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = false;
    using Place = i32;

    const f32* w;
    i64 group;
    ResidueClass<P> part;

    __device__ Place place(i64 channel) const { return i32(channel); }
    __device__ void load(const Place& channel, i32 k, f32 (&value)[VEC]) const {
        constexpr u32 filters = Conv<P>::GROUP;
        const u32 tap = u32(k) / filters;
        const i64 filter = group * filters + u32(k) % filters;
        const bool inside = i32(tap) < part.taps() && channel < P::C;
        const Pixel met = part.tap(tap);
        const i64 from = filter * Conv<P>::DEPTH + w_within<P>(channel, met.row, met.col);
        load_or_zero(value, w, from, inside);
    }
};

// The output pixels of one chunk of the batch: the depth of the filter gradient.
template <class P>
struct PixelChunk {
    i64 image;   // of the first pixel
    u32 offset;  // of the first pixel in that image
    i32 count;

    __device__ static PixelChunk of(i64 first, i64 count) {
        return {first / Pixels<P>::COUNT, u32(first % Pixels<P>::COUNT), i32(count)};
    }
};

// Filter gradient, left: row = filter of the group, depth = output pixel.
template <class P>
struct ConvGradientsByFilter {
    static constexpr int VEC = P::YROW == 0 && Conv<P>::GROUP % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = false;
    using Place = i32;

    const f32* dy;
    const u8* index;
    i64 group;
    PixelChunk<P> chunk;

    __device__ Place place(i64 filter) const { return i32(filter); }
    __device__ void load(const Place& filter, i32 k, f32 (&value)[VEC]) const {
        const bool inside = k < chunk.count && filter < Conv<P>::GROUP;
        const u32 pixel = chunk.offset + u32(k), rest = pixel % u32(Pixels<P>::COUNT);
        const i64 image = chunk.image + pixel / u32(Pixels<P>::COUNT);
        const i32 number = i32(group * Conv<P>::GROUP) + filter;
        const Pixel at = Pixels<P>::at(rest);
        if constexpr (P::POOL != 0) {
            const i64 from = image * Conv<P>::POOLED_SIZE +
                             pooled_within<P>(number, at.row / 2, at.col / 2);
            load_or_zero(value, dy, from, inside);
            keep_winners(value, index, from, i32(rest % 4), inside);
        } else {
            const i64 from = image * Conv<P>::Y_SIZE + y_within<P>(number, at.row, at.col);
            load_or_zero(value, dy, from, inside);
        }
    }
};

// Filter gradient, right: row = tap (r, s, c), depth = output pixel. With BIAS a row of ones
// follows the taps: its products are the bias gradient.
template <class P>
struct ConvPatchesByTap {
    static constexpr int VEC = P::XROW == 0 && P::C % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = false;
    struct Place {
        i64 tap;
        i32 channel, row, col;  // what it adds to a pixel's position
    };

    const f32* x;
    i64 group;
    PixelChunk<P> chunk;

    __device__ Place place(i64 tap) const {
        const u32 at = u32(tap) / u32(P::C);
        return {tap, i32(group * P::C + u32(tap) % u32(P::C)),
                i32(at / u32(P::S)) * i32(P::DH) - i32(P::PH),
                i32(at % u32(P::S)) * i32(P::DW) - i32(P::PW)};
    }
    __device__ void load(const Place& tap, i32 k, f32 (&value)[VEC]) const {
        const u32 pixel = chunk.offset + u32(k);
        const i64 image = chunk.image + pixel / u32(Pixels<P>::COUNT);
        const Pixel at = Pixels<P>::at(pixel % u32(Pixels<P>::COUNT));
        const i32 row = at.row * i32(P::UH) + tap.row, col = at.col * i32(P::UW) + tap.col;
        const bool inside = k < chunk.count && tap.tap < Conv<P>::DEPTH && row >= 0 &&
                            row < P::H && col >= 0 && col < P::W;
        const i64 from = image * Conv<P>::X_SIZE + x_within<P>(tap.channel, row, col);
        load_or_zero(value, x, from, inside);
        if (P::BIAS != 0 && tap.tap == Conv<P>::DEPTH && k < chunk.count) value[0] = 1.0f;
    }
};
