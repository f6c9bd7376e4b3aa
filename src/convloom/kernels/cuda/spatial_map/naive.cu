// y = sum over the taps of its row and column of weight * x, or `value` where no tap is inside:
// padding, resizing, nailbed, mirror, blur (device/axis_map.cuh)
//
// One thread an output, in the memory order of y. Limit: memory; indices of 64 bits.
#include "device/axis_map.cuh"

template <class P>
__global__ void spatial_map_naive(const f32* x, f32* y, i64 n, f32 value, f32 a, f32 b, f32 c,
                                  f32 d, f32 e) {
    const i64 i = global_thread();
    if (i >= n * Images<P>::Y_SIZE) return;
    f32 sum = 0.0f;
    bool inside = false;
    SpatialMap<P>::taps(Images<P>::y_place(i), {a, b, c, d, e}, [&](i64 from, f32 weight) {
        sum = fmaf(weight, x[from], sum), inside = true;
    });
    y[i] = inside ? sum : value;
}
