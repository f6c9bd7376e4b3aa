// Pixels of a data set that lies in device memory, as the network takes them: cropped and flipped
// as drawn, and normalised. The product is rounded before the sum, as on the host, so that both give
// the same bits.
#pragma once

#include "device/index.cuh"

// Where pixel i of a line of n lies that is mirrored at its ends, which are not repeated.
__device__ __forceinline__ i64 mirrored(i64 i, i64 n) {
    return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i;
}

// What a pixel is in memory.
template <bool FLOATS>
struct PixelOf {
    using Type = u8;
};
template <>
struct PixelOf<true> {
    using Type = f32;
};

// A data set; F says what its images are: C, H, W; FLOATS: floats that are taken as they are, else
// bytes; AUGMENT: whether they are cropped and flipped, with PADDING black pixels on every side, or
// the mirror image if REFLECT. A crop begins at (row, col) of the padded image; the flip comes after
// it. `draws` holds row, column and flip of every sample.
template <class F>
struct DataSet {
    using Raw = typename PixelOf<F::FLOATS != 0>::Type;
    const void* images;
    const f32* scale;
    const f32* shift;
    const u8* draws;

    // What lies in memory for a pixel of the batch.
    __device__ __forceinline__ Raw raw(i64 sample, i64 channel, i64 row, i64 col) const {
        bool inside = true;
        if constexpr (F::AUGMENT != 0) {
            const u8* drawn = draws + sample * 3;
            if (drawn[2] != 0) col = F::W - 1 - col;
            row += i64(drawn[0]) - F::PADDING;
            col += i64(drawn[1]) - F::PADDING;
            if constexpr (F::REFLECT != 0) {
                row = mirrored(row, F::H);
                col = mirrored(col, F::W);
            } else {
                inside = row >= 0 && row < F::H && col >= 0 && col < F::W;
            }
        }
        const i64 from = ((sample * F::C + channel) * F::H + row) * F::W + col;
        return inside ? static_cast<const Raw*>(images)[from] : Raw(0);
    }

    // The network's input for it.
    __device__ __forceinline__ f32 value(Raw raw, i64 channel) const {
        if constexpr (F::FLOATS != 0) return raw;
        return normalised(raw, scale[channel], shift[channel]);
    }
    __device__ __forceinline__ static f32 normalised(Raw raw, f32 scale, f32 shift) {
        return __fadd_rn(__fmul_rn(f32(raw), scale), shift);
    }
};
