// As gather_naive, for windows of larger images, and for colours that are moved: input = pixel *
// scale + shift of a window of the samples that the training step takes, flipped as drawn; target =
// their labels; hyper and counter = the step's own
//
// One thread a pixel of the batch. Images are P::IMAGE_H by P::IMAGE_W, the window P::H by P::W. It
// begins at (row, col) of the image with P::PADDING black pixels, or its mirror image if P::REFLECT,
// on every side; the flip comes after it. `draws` holds row, column and flip of every sample, 16 bits
// each, as an image may have more than 256 rows. With P::NOISE every sample has a shift of its own for
// each channel, in `moved`. With P::MAPPED `shift` has one for every pixel of the window, whatever part
// of an image that is, and noise is added behind it. With P::FLOATS the images are floats that are
// taken as they are. rates, hyper and counter may be null.
// Limit: 5 bytes of memory traffic a pixel.
#include "device/batch.cuh"

template <class P>
__global__ void gather_windows(const void* images, const i64* labels, const f32* scale,
                               const f32* shift, const f32* moved, const i64* order,
                               const u16* draws, const f64* rates, const u64* clock, f32* input,
                               i64* target, f64* hyper, u64* counter, i64 size) {
    constexpr i64 C = P::C, H = P::H, W = P::W, IMAGE_H = P::IMAGE_H, IMAGE_W = P::IMAGE_W;
    using Raw = typename PixelOf<P::FLOATS != 0>::Type;
    const i64 i = global_thread(), n = size / (C * H * W);
    const i64 step = i64(clock[0]);
    if (hyper != nullptr && i < P::RATES) hyper[i] = rates[step * P::RATES + i];
    if (counter != nullptr && i == 0) counter[1] = clock[1] + clock[0];
    if (i < n) target[i] = labels[order[step * n + i]];
    if (i >= size) return;
    const Place at = place_of<C, H, W, true>(i);
    const i64 sample = order[step * n + at.image];
    const u16* drawn = draws + sample * 3;
    i64 row = at.row + i64(drawn[0]) - P::PADDING;
    i64 col = (drawn[2] != 0 ? W - 1 - at.col : at.col) + i64(drawn[1]) - P::PADDING;
    bool inside = true;
    if constexpr (P::REFLECT != 0) {
        row = mirrored(row, IMAGE_H);
        col = mirrored(col, IMAGE_W);
    } else {
        inside = row >= 0 && row < IMAGE_H && col >= 0 && col < IMAGE_W;
    }
    const i64 from = ((sample * C + at.channel) * IMAGE_H + row) * IMAGE_W + col;
    const Raw raw = inside ? static_cast<const Raw*>(images)[from] : Raw(0);
    if constexpr (P::FLOATS != 0) {
        input[i] = raw;
    } else {
        const f32* own = P::NOISE != 0 ? moved + sample * C : shift;
        const f32 first = P::MAPPED != 0 ? shift[i % (C * H * W)] : own[at.channel];
        f32 value = __fadd_rn(__fmul_rn(f32(raw), scale[at.channel]), first);
        if constexpr (P::NOISE != 0 && P::MAPPED != 0) value = __fadd_rn(value, own[at.channel]);
        input[i] = value;
    }
}
