// Pooling windows. P holds C channels, input H x W, output OH x OW, kernel KH x KW, stride
// UH x UW, padding PH x PW, dilation DH x DW, ADAPTIVE: 1 where windows cover the input in nearly
// equal parts instead, and XROW, YROW: 1 for NCHW, 0 for NHWC.
#pragma once

#include "device/images.cuh"

// The windows of one axis over SIZE cells. Sliding ones start PADDING cells before the input.
template <i64 ADAPTIVE, i64 SIZE, i64 POSITIONS, i64 KERNEL, i64 STRIDE, i64 PADDING, i64 DILATION>
struct Windows {
    static constexpr i64 EXTENT = (KERNEL - 1) * DILATION + 1;
    static constexpr bool WIDE = ADAPTIVE != 0 || SIZE + EXTENT + STRIDE >= 1LL << 30 ||
                                 PADDING >= 1LL << 30 || PADDING <= -(1LL << 30);
    using Int = typename CountOf<WIDE>::Type;
    // Few taps are all walked, and those outside are passed by: loops of constant length overlap
    // their loads. So with the windows over a cell.
    static constexpr bool FEW_TAPS = ADAPTIVE == 0 && KERNEL <= 8;
    static constexpr i64 MOST_OVER = ceil_div(EXTENT, STRIDE);
    static constexpr bool FEW_OVER = ADAPTIVE == 0 && MOST_OVER <= 4;

    // The cell of tap 0 of a window; it may lie outside.
    __device__ static Int start(Int at) {
        if constexpr (ADAPTIVE != 0) return at * SIZE / POSITIONS;
        return at * Int(STRIDE) - Int(PADDING);
    }
    // Taps [first_tap, last_tap) that may lie inside; `inside` says which do.
    __device__ static Int first_tap(Int at) {
        if constexpr (ADAPTIVE != 0 || FEW_TAPS) return 0;
        const Int begin = start(at);
        return begin < 0 ? (Int(DILATION) - 1 - begin) / Int(DILATION) : 0;
    }
    __device__ static Int last_tap(Int at) {
        if constexpr (ADAPTIVE != 0) return ceil_div((at + 1) * SIZE, POSITIONS) - start(at);
        if constexpr (FEW_TAPS) return Int(KERNEL);
        const Int begin = start(at), left = Int(SIZE) - begin;
        return left <= 0 ? 0 : Int(least(KERNEL, ceil_div(left, DILATION)));
    }
    __device__ static bool inside(Int cell) { return cell >= 0 && cell < SIZE; }

    // Windows [first_over, first_over + count_over) that may reach over a cell; `reaches` says
    // which do: with a dilation, those that have a tap there.
    __device__ static Int first_over(Int cell) {
        if constexpr (ADAPTIVE != 0) return cell * POSITIONS / SIZE;
        const Int reach = cell + Int(PADDING);
        return reach < EXTENT ? 0 : (reach - Int(EXTENT)) / Int(STRIDE) + 1;
    }
    __device__ static Int count_over(Int cell) {
        if constexpr (ADAPTIVE != 0)
            return ceil_div((cell + 1) * POSITIONS, SIZE) - first_over(cell);
        if constexpr (FEW_OVER) return Int(MOST_OVER);
        const Int reach = cell + Int(PADDING);
        return reach < 0 ? 0 : Int(least(reach / Int(STRIDE) + 1, POSITIONS)) - first_over(cell);
    }
    __device__ static bool reaches(Int at, Int cell) {
        if constexpr (ADAPTIVE != 0) return true;
        const Int tap = cell - start(at);
        return at < POSITIONS && tap >= 0 && tap < EXTENT && tap % Int(DILATION) == 0;
    }

    // Cells that an average over a window counts: those inside, or with COUNT_PADDING also the
    // padding, but never what overhangs it.
    template <bool COUNT_PADDING>
    __device__ static Int counted(Int at) {
        const Int begin = start(at);
        if constexpr (ADAPTIVE != 0) return last_tap(at);
        if constexpr (COUNT_PADDING) return Int(least(begin + KERNEL, SIZE + PADDING)) - begin;
        return Int(least(begin + KERNEL, SIZE)) - Int(greatest(begin, 0));
    }
};

template <class P>
using RowWindows = Windows<P::ADAPTIVE, P::H, P::OH, P::KH, P::UH, P::PH, P::DH>;
template <class P>
using ColWindows = Windows<P::ADAPTIVE, P::W, P::OW, P::KW, P::UW, P::PW, P::DW>;

template <class P>
struct Pool : Images<P> {
    using Rows = RowWindows<P>;
    using Cols = ColWindows<P>;
    using Images<P>::x_offset;
    using Images<P>::y_offset;

    // Calls visit(offset in x, cell) for the cells of the window at (p, q), in scan order.
    template <class Visit>
    __device__ __forceinline__ static void cells(const Place& at, const Visit& visit) {
        for (auto r = Rows::first_tap(at.row); r < Rows::last_tap(at.row); ++r) {
            const auto row = Rows::start(at.row) + r * P::DH;
            if (Rows::FEW_TAPS && !Rows::inside(row)) continue;
            for (auto s = Cols::first_tap(at.col); s < Cols::last_tap(at.col); ++s) {
                const auto col = Cols::start(at.col) + s * P::DW;
                if (Cols::FEW_TAPS && !Cols::inside(col)) continue;
                visit(x_offset(at.image, at.channel, row, col), row * P::W + col);
            }
        }
    }

    // Calls visit(offset in y, p, q) for the windows with a tap at the cell, in scan order.
    template <class Visit>
    __device__ __forceinline__ static void windows(const Place& at, const Visit& visit) {
        for (decltype(Rows::first_over(0)) i = 0; i < Rows::count_over(at.row); ++i) {
            const auto p = Rows::first_over(at.row) + i;
            if (!Rows::reaches(p, at.row)) continue;
            for (decltype(Cols::first_over(0)) j = 0; j < Cols::count_over(at.col); ++j) {
                const auto q = Cols::first_over(at.col) + j;
                if (!Cols::reaches(q, at.col)) continue;
                visit(y_offset(at.image, at.channel, p, q), p, q);
            }
        }
    }

    // What the average over the window at (p, q) divides by.
    __device__ static f32 divisor(i64 p, i64 q) {
        if constexpr (P::DIVISOR != 0) return f32(P::DIVISOR);
        return f32(Rows::template counted<P::COUNT_PADDING != 0>(p) *
                   Cols::template counted<P::COUNT_PADDING != 0>(q));
    }
};

// Whether `value` takes the place of `best`: greater, or a NaN (the last NaN wins).
__device__ __forceinline__ bool replaces(f32 value, f32 best) {
    return value > best || value != value;
}

// The same by magnitude, with MAGNITUDE: the last of equal ones wins.
template <class P>
__device__ __forceinline__ bool prevails(f32 value, f32 best) {
    if constexpr (P::MAGNITUDE != 0) return fabsf(value) >= fabsf(best) || value != value;
    return replaces(value, best);
}

// Whether an input receives the gradient of a window whose greatest element is `best`.
__device__ __forceinline__ bool ties(f32 value, f32 best) {
    return value == best || (value != value && best != best);
}
