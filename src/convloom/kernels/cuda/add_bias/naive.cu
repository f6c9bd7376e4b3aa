// y = x + bias of the channel, or with UNSHARED of the channel and pixel
//
// One thread an element, in the memory order of x and y: NCHW if ROW, else NHWC. Biases of pixels
// are row-major: (C, H, W). Limit: 8 bytes of memory traffic an element.
#include "device/index.cuh"

template <class P>
__global__ void add_bias_naive(const f32* x, const f32* bias, f32* y, i64 size) {
    const i64 i = global_thread();
    if (i >= size) return;
    const Place at = place_of<P::C, P::H, P::W, P::ROW != 0>(i);
    const i64 from = P::UNSHARED != 0 ? offset_of<P::C, P::H, P::W, true>(at.channel, at.row, at.col)
                                      : at.channel;
    y[i] = x[i] + bias[from];
}
