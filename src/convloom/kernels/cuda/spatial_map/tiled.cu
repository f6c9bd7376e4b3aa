// y = sum over the taps of its row and column of weight * x, or `value` where no tap is inside
//
// One thread four neighbouring channels of an output; channels are last, and a multiple of four.
// Against naive: four elements a load and a store, and the search for taps serves four. Limit:
// memory.
#include "device/axis_map.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    spatial_map_tiled(const f32* x, f32* y, f32 value, f32 a, f32 b, f32 c, f32 d, f32 e) {
    Place at;
    if (!place_of_fours<P::C, P::OH, P::OW, 256>(at)) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bool inside = false;
    SpatialMap<P>::taps(at, {a, b, c, d, e}, [&](i64 from, f32 weight) {
        const float4 four = *reinterpret_cast<const float4*>(x + from);
        sum.x = fmaf(weight, four.x, sum.x), sum.y = fmaf(weight, four.y, sum.y);
        sum.z = fmaf(weight, four.z, sum.z), sum.w = fmaf(weight, four.w, sum.w);
        inside = true;
    });
    if (!inside) sum = make_float4(value, value, value, value);
    const i64 to = Images<P>::y_offset(at.image, at.channel, at.row, at.col);
    store_float4(y + to, sum);
}
