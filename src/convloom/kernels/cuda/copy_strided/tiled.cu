// target[n,a,b,c] = source[n,a,b,c], where c is innermost in both: joins and slices along channels
//
// One thread four neighbours. Constants are those of the naive rung; C and all distances are
// multiples of four. Against naive: four elements a load and a store, and indices of 32 bits.
// Limit: 8 bytes of memory traffic an element.
#include "device/images.cuh"

template <class P>
__global__ void __launch_bounds__(256) copy_strided_tiled(const f32* source, f32* target) {
    Place at;
    if (!place_of_fours<P::C, P::A, P::B, 256>(at)) return;
    const f32* from = source + at.image * P::FROM_N + at.row * P::FROM_A + at.col * P::FROM_B;
    f32* to = target + at.image * P::TO_N + at.row * P::TO_A + at.col * P::TO_B;
    *reinterpret_cast<float4*>(to + at.channel) =
        *reinterpret_cast<const float4*>(from + at.channel);
}
