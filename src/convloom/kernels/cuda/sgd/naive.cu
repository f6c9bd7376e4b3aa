// g = scale * g + decay * p;  v = momentum * v + g;  p = p - rate * (v or g + momentum * v)
//
// One thread an element of one parameter; a launch for each parameter. new_p may be p, new_v v.
// Limit: 20 bytes of memory traffic an element; small parameters cost a launch each.
#include "device/index.cuh"
#include "device/update.cuh"

template <class P>
__global__ void sgd_naive(const f64* hyper, const f64* norm, const f32* p, const f32* g,
                          const f32* v, f32* new_p, f32* new_v, i64 size, f32 rate, f32 decay) {
    const i64 i = global_thread();
    if (i >= size) return;
    const SgdRule<P> rule(hyper, norm, rate, decay);
    f32 parameter = p[i], velocity = v[i];
    rule.update(parameter, g[i], velocity);
    new_p[i] = parameter;
    new_v[i] = velocity;
}
