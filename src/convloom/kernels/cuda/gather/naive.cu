// input = pixel * scale + shift of the samples that the training step at the clock takes,
// cropped and flipped as drawn; target = their labels; hyper and counter = the step's own
//
// One thread a pixel of the batch. The data set lies in device memory as bytes, so a step needs
// nothing from the host: row clock[0] of `order` names its samples, row clock[0] of `rates` holds
// its hyper values, and clock[1] + clock[0] is its number, which dropout is keyed by. The product
// is rounded before the sum, as on the host, so that both give the same bits.
//
// A crop begins at (row, col) of the image with P::PADDING black pixels, or its mirror image, on
// every side; the flip comes after it. `draws` holds row, column and flip of every sample of the
// data set. With P::FLOATS the images are floats that are taken as they are. rates, hyper and
// counter may be null.
// Limit: 5 bytes of memory traffic a pixel.
#include "device/index.cuh"

// Where pixel i of a line of n lies that is mirrored at its ends, which are not repeated.
__device__ __forceinline__ i64 mirrored(i64 i, i64 n) {
    return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i;
}

template <class P>
__global__ void gather_naive(const void* images, const i64* labels, const f32* scale,
                             const f32* shift, const i64* order, const u8* draws, const f64* rates,
                             const u64* clock, f32* input, i64* target, f64* hyper, u64* counter,
                             i64 size) {
    constexpr i64 C = P::C, H = P::H, W = P::W;
    const i64 i = global_thread(), n = size / (C * H * W);
    const i64 step = i64(clock[0]);
    if (hyper != nullptr && i < P::RATES) hyper[i] = rates[step * P::RATES + i];
    if (counter != nullptr && i == 0) counter[1] = clock[1] + clock[0];
    if (i < n) target[i] = labels[order[step * n + i]];
    if (i >= size) return;
    const Place at = place_of<C, H, W, true>(i);
    const i64 sample = order[step * n + at.image];
    i64 row = at.row, col = at.col;
    bool inside = true;
    if constexpr (P::AUGMENT != 0) {
        const u8* drawn = draws + sample * 3;
        if (drawn[2] != 0) col = W - 1 - col;
        row += i64(drawn[0]) - P::PADDING;
        col += i64(drawn[1]) - P::PADDING;
        if constexpr (P::REFLECT != 0) {
            row = mirrored(row, H);
            col = mirrored(col, W);
        } else {
            inside = row >= 0 && row < H && col >= 0 && col < W;
        }
    }
    const i64 from = ((sample * C + at.channel) * H + row) * W + col;
    if constexpr (P::FLOATS != 0) {
        input[i] = inside ? static_cast<const f32*>(images)[from] : 0.0f;
    } else {
        const u8 pixel = inside ? static_cast<const u8*>(images)[from] : u8(0);
        input[i] = __fadd_rn(__fmul_rn(f32(pixel), scale[at.channel]), shift[at.channel]);
    }
}
