// dx = sum of dy over the windows that the input won; with TIES over those whose maximum it equals
//
// One thread four neighbouring channels of an input; channels are last, and a multiple of four.
// Against naive: four elements a load and a store, and indices of 32 bits.
// Limit: memory; windows that overlap are served by the caches.
#include "device/pool.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    max_pool_grad_tiled(const f32* dy, const i32* index, const f32* x, const f32* y, f32* dx) {
    Place at;
    if (!place_of_fours<P::C, P::H, P::W, 256>(at)) return;
    const i64 to = Pool<P>::x_offset(at.image, at.channel, at.row, at.col);
    const i32 here = i32(at.row * P::W + at.col);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), value = sum;
    if constexpr (P::TIES != 0) value = *reinterpret_cast<const float4*>(x + to);
    Pool<P>::windows(at, [&](i64 from, i64, i64) {
        const float4 gradient = *reinterpret_cast<const float4*>(dy + from);
        if constexpr (P::TIES != 0) {
            const float4 best = *reinterpret_cast<const float4*>(y + from);
            if (ties(value.x, best.x)) sum.x += gradient.x;
            if (ties(value.y, best.y)) sum.y += gradient.y;
            if (ties(value.z, best.z)) sum.z += gradient.z;
            if (ties(value.w, best.w)) sum.w += gradient.w;
        } else {
            const int4 winner = *reinterpret_cast<const int4*>(index + from);
            if (winner.x == here) sum.x += gradient.x;
            if (winner.y == here) sum.y += gradient.y;
            if (winner.z == here) sum.z += gradient.z;
            if (winner.w == here) sum.w += gradient.w;
        }
    });
    store_float4(dx + to, sum);
}
