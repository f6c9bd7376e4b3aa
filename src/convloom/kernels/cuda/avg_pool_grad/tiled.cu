// dx = sum over the windows that hold the input of dy / cells counted (or DIVISOR)
//
// One thread four neighbouring channels of an input; channels are last, and a multiple of four.
// Against naive: four elements a load and a store, and indices of 32 bits. Limit: memory.
#include "device/pool.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(256) avg_pool_grad_tiled(const f32* dy, f32* dx) {
    Place at;
    if (!place_of_fours<P::C, P::H, P::W, 256>(at)) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    Pool<P>::windows(at, [&](i64 from, i64 p, i64 q) {
        const float4 gradient = *reinterpret_cast<const float4*>(dy + from);
        const f32 count = Pool<P>::divisor(p, q);
        sum.x += gradient.x / count, sum.y += gradient.y / count;
        sum.z += gradient.z / count, sum.w += gradient.w / count;
    });
    const i64 to = Pool<P>::x_offset(at.image, at.channel, at.row, at.col);
    store_float4(dx + to, sum);
}
