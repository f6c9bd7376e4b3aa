// y = sum of each window's cells / cells counted (or DIVISOR, where that is not 0)
//
// One thread four neighbouring channels of a window; channels are last, and a multiple of four.
// Against naive: four elements a load and a store, and indices of 32 bits. Limit: memory.
#include "device/pool.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(256) avg_pool_tiled(const f32* x, f32* y) {
    Place at;
    if (!place_of_fours<P::C, P::OH, P::OW, 256>(at)) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    Pool<P>::cells(at, [&](i64 from, i64) {
        const float4 value = *reinterpret_cast<const float4*>(x + from);
        sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
    });
    const f32 count = Pool<P>::divisor(at.row, at.col);
    const i64 to = Pool<P>::y_offset(at.image, at.channel, at.row, at.col);
    store_float4(y + to, make_float4(sum.x / count, sum.y / count, sum.z / count, sum.w / count));
}
