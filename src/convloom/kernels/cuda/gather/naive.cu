// input = pixel * scale + shift of the samples that the training step at the clock takes,
// cropped and flipped as drawn; target = their labels; hyper and counter = the step's own
//
// One thread a pixel of the batch. The data set lies in device memory as bytes, so a step needs
// nothing from the host: row clock[0] of `order` names its samples, row clock[0] of `rates` holds
// its hyper values, and clock[1] + clock[0] is its number, which dropout is keyed by. P is what
// device/batch.cuh asks of a data set; MAPPED says that `shift` has one for every pixel of the input,
// wherever it was cropped from and whether it is flipped. rates, hyper and counter may be null.
// Limit: 5 bytes of memory traffic a pixel.
#include "device/batch.cuh"

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
    const DataSet<P> data{images, scale, shift, draws};
    const i64 sample = order[step * n + at.image];
    const auto raw = data.raw(sample, at.channel, at.row, at.col);
    if constexpr (P::MAPPED != 0) {
        input[i] = DataSet<P>::normalised(raw, scale[at.channel], shift[i % (C * H * W)]);
    } else {
        input[i] = data.value(raw, at.channel);
    }
}
