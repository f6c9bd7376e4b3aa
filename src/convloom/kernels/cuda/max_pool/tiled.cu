// y = greatest element of each window, index (with INDEX) = its h * W + w in the input plane
//
// One thread four neighbouring channels of a window; channels are last, and a multiple of four.
// Who wins is said in the naive rung. Against naive: four elements a load and a store, and indices
// of 32 bits. Limit: memory.
#include "device/pool.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(256) max_pool_tiled(const f32* x, f32* y, i32* index) {
    Place at;
    if (!place_of_fours<P::C, P::OH, P::OW, 256>(at)) return;
    float4 best = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int4 winner = make_int4(-1, -1, -1, -1);
    Pool<P>::cells(at, [&](i64 from, i64 cell) {
        const float4 value = *reinterpret_cast<const float4*>(x + from);
        if (winner.x < 0 || prevails<P>(value.x, best.x)) best.x = value.x, winner.x = i32(cell);
        if (winner.y < 0 || prevails<P>(value.y, best.y)) best.y = value.y, winner.y = i32(cell);
        if (winner.z < 0 || prevails<P>(value.z, best.z)) best.z = value.z, winner.z = i32(cell);
        if (winner.w < 0 || prevails<P>(value.w, best.w)) best.w = value.w, winner.w = i32(cell);
    });
    const i64 to = Pool<P>::y_offset(at.image, at.channel, at.row, at.col);
    store_float4(y + to, best);
    if constexpr (P::INDEX != 0) *reinterpret_cast<int4*>(index + to) = winner;
}
