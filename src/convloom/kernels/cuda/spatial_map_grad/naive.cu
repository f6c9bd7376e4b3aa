// dx = sum over the outputs with a tap at the input of weight * dy: the gradient of spatial_map
//
// One thread an input, in the memory order of dx: it gathers, so nothing is added by two threads.
// Limit: memory, and the search for the taps.
#include "device/axis_map.cuh"

template <class P>
__global__ void spatial_map_grad_naive(const f32* dy, f32* dx, i64 n, f32 a, f32 b, f32 c, f32 d,
                                       f32 e) {
    const i64 i = global_thread();
    if (i >= n * Images<P>::X_SIZE) return;
    f32 sum = 0.0f;
    SpatialMap<P>::outputs(Images<P>::x_place(i), {a, b, c, d, e}, [&](i64 from, f32 weight) {
        sum = fmaf(weight, dy[from], sum);
    });
    dx[i] = sum;
}
