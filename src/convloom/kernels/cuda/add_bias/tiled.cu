// y = x + bias of the channel, or with UNSHARED of the channel and pixel
//
// One thread four neighbouring channels of a pixel; channels are last, and a multiple of four.
// Against naive: four elements a load and a store, and indices of 32 bits. Limit: 8 bytes of memory
// traffic an element; biases of pixels, which are row-major, come from the second-level cache.
#include "device/images.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(256) add_bias_tiled(const f32* x, const f32* bias, f32* y) {
    Place at;
    if (!place_of_fours<P::C, P::H, P::W, 256>(at)) return;
    const i64 offset = at.image * (P::C * P::H * P::W) +
                       offset_of<P::C, P::H, P::W, false>(at.channel, at.row, at.col);
    const auto add = [&](i32 v) {
        const i32 channel = at.channel + v;
        return bias[P::UNSHARED != 0 ? offset_of<P::C, P::H, P::W, true>(channel, at.row, at.col)
                                     : channel];
    };
    const float4 four = *reinterpret_cast<const float4*>(x + offset);
    store_float4(y + offset, four.x + add(0), four.y + add(1), four.z + add(2), four.w + add(3));
}
