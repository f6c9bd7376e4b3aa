// A convolution and its gradients, element by element: what the naive and the fused rung share.
//
// P holds the sizes: C channels and K / G filters of one group, G groups, K filters in all, images
// H x W, filters R x S, outputs OH x OW; stride UH x UW, dilation DH x DW, padding PH x PW; and
// XROW, YROW, WROW: 1 where x, y or w is row-major (NCHW, KCRS) and not NHWC or KRSC.
#pragma once

#include "device/index.cuh"

template <class P>
struct Conv {
    static constexpr i64 CHANNELS = P::C * P::G;   // of a whole input image
    static constexpr i64 GROUP = P::K / P::G;      // filters of a group
    static constexpr i64 DEPTH = P::C * P::R * P::S;  // products in the sum of an output

    static constexpr i64 X_SIZE = CHANNELS * P::H * P::W;
    static constexpr i64 Y_SIZE = P::K * P::OH * P::OW;

    // The map after 2x2 pooling of stride 2; a window that would overhang is dropped.
    static constexpr i64 POOL_ROWS = P::OH / 2, POOL_COLS = P::OW / 2;
    static constexpr i64 POOLED_SIZE = P::K * POOL_ROWS * POOL_COLS;

    __device__ static Place x_place(i64 i) {
        return place_of<CHANNELS, P::H, P::W, P::XROW != 0>(i);
    }
    __device__ static Place y_place(i64 i) {
        return place_of<P::K, P::OH, P::OW, P::YROW != 0>(i);
    }
    __device__ static Place pooled_place(i64 i) {
        return place_of<P::K, POOL_ROWS, POOL_COLS, P::YROW != 0>(i);
    }
    // A filter is an image of C channels, R rows and S columns.
    __device__ static Place w_place(i64 i) { return place_of<P::C, P::R, P::S, P::WROW != 0>(i); }

    __device__ static i64 x_offset(i64 image, i64 channel, i64 row, i64 col) {
        return image * X_SIZE + offset_of<CHANNELS, P::H, P::W, P::XROW != 0>(channel, row, col);
    }
    __device__ static i64 y_offset(i64 image, i64 filter, i64 row, i64 col) {
        return image * Y_SIZE + offset_of<P::K, P::OH, P::OW, P::YROW != 0>(filter, row, col);
    }
    __device__ static i64 w_offset(i64 filter, i64 channel, i64 r, i64 s) {
        return filter * DEPTH + offset_of<P::C, P::R, P::S, P::WROW != 0>(channel, r, s);
    }

    __device__ static i64 pooled_offset(i64 image, i64 filter, i64 row, i64 col) {
        return image * POOLED_SIZE +
               offset_of<P::K, POOL_ROWS, POOL_COLS, P::YROW != 0>(filter, row, col);
    }

    // x at a position that may lie in the padding, where it is 0.
    __device__ static f32 padded(const f32* x, i64 image, i64 channel, i64 row, i64 col) {
        const bool inside = row >= 0 && row < P::H && col >= 0 && col < P::W;
        return inside ? x[x_offset(image, channel, row, col)] : 0.0f;
    }

    // y without its bias. Padding is multiplied like any other 0, so that 0 * Inf is NaN as in
    // the reference.
    __device__ static f32 output(const f32* x, const f32* w, const Place& at) {
        const i64 first = at.channel / GROUP * P::C;
        f32 sum = 0.0f;
        for (i64 r = 0; r < P::R; ++r) {
            const i64 row = at.row * P::UH + r * P::DH - P::PH;
            for (i64 s = 0; s < P::S; ++s) {
                const i64 col = at.col * P::UW + s * P::DW - P::PW;
                for (i64 c = 0; c < P::C; ++c) {
                    const f32 value = padded(x, at.image, first + c, row, col);
                    sum = fmaf(value, w[w_offset(at.channel, c, r, s)], sum);
                }
            }
        }
        return sum;
    }

    // dx: the outputs that met this input, each times the weight it met it with. Dy gives dy:
    // dy(image, filter, row, col).
    template <class Dy>
    __device__ static f32 input_gradient(const Dy& dy, const f32* w, const Place& at) {
        const i64 group = at.channel / P::C, c = at.channel % P::C;
        f32 sum = 0.0f;
        for (i64 r = 0; r < P::R; ++r) {
            const i64 row = at.row + P::PH - r * P::DH;
            if (row < 0 || row % P::UH != 0 || row / P::UH >= P::OH) continue;
            for (i64 s = 0; s < P::S; ++s) {
                const i64 col = at.col + P::PW - s * P::DW;
                if (col < 0 || col % P::UW != 0 || col / P::UW >= P::OW) continue;
                for (i64 k = group * GROUP; k < (group + 1) * GROUP; ++k) {
                    const f32 value = dy(at.image, k, row / P::UH, col / P::UW);
                    sum = fmaf(value, w[w_offset(k, c, r, s)], sum);
                }
            }
        }
        return sum;
    }

    // dw where 2x2 pooling followed: only the winner of each window has a gradient.
    __device__ static f32 pooled_filter_gradient(const f32* x, const f32* dyp, const u8* index,
                                                 const Place& at, i64 first, i64 last) {
        const i64 channel = at.image / GROUP * P::C + at.channel;
        f32 total = 0.0f;
        for (i64 image = first; image < last; ++image) {
            f32 sum = 0.0f;
            for (i64 p = 0; p < POOL_ROWS; ++p) {
#pragma unroll 16  // so that as many loads are on their way
                for (i64 q = 0; q < POOL_COLS; ++q) {
                    const i64 from = pooled_offset(image, at.image, p, q);
                    const i64 y_row = 2 * p + index[from] / 2, y_col = 2 * q + index[from] % 2;
                    const i64 row = y_row * P::UH + at.row * P::DH - P::PH;
                    const i64 col = y_col * P::UW + at.col * P::DW - P::PW;
                    sum = fmaf(padded(x, image, channel, row, col), dyp[from], sum);
                }
            }
            total += sum;
        }
        return total;
    }

    // dw of the weight at `at` (image: the filter), from images [first, last). Each image is summed
    // by itself first, which keeps the rounding errors of a large batch small.
    template <class Dy>
    __device__ static f32 filter_gradient(const f32* x, const Dy& dy, const Place& at, i64 first,
                                          i64 last) {
        const i64 channel = at.image / GROUP * P::C + at.channel;
        f32 total = 0.0f;
        for (i64 image = first; image < last; ++image) {
            f32 sum = 0.0f;
            for (i64 p = 0; p < P::OH; ++p) {
                const i64 row = p * P::UH + at.row * P::DH - P::PH;
#pragma unroll 16  // so that as many loads are on their way
                for (i64 q = 0; q < P::OW; ++q) {
                    const i64 col = q * P::UW + at.col * P::DW - P::PW;
                    const f32 value = padded(x, image, channel, row, col);
                    sum = fmaf(value, dy(image, at.image, p, q), sum);
                }
            }
            total += sum;
        }
        return total;
    }
};

// dy as it lies in memory.
template <class P>
struct DenseGradient {
    const f32* dy;

    __device__ f32 operator()(i64 image, i64 filter, i64 row, i64 col) const {
        return dy[Conv<P>::y_offset(image, filter, row, col)];
    }
};

// dy where 2x2 pooling followed: dyp where the cell won its window, else 0.
template <class P>
struct PooledGradient {
    const f32* dyp;
    const u8* index;

    __device__ f32 operator()(i64 image, i64 filter, i64 row, i64 col) const {
        if (row / 2 >= Conv<P>::POOL_ROWS || col / 2 >= Conv<P>::POOL_COLS) return 0.0f;
        const i64 from = Conv<P>::pooled_offset(image, filter, row / 2, col / 2);
        return index[from] == 2 * (row % 2) + col % 2 ? dyp[from] : 0.0f;
    }
};
