// m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2;
// p = p * (1 - lr * decay) - lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)
//
// One thread an element of one parameter; a launch for each parameter. New tensors may be the old.
// Limit: 28 bytes of memory traffic an element; small parameters cost a launch each.
#include "device/index.cuh"
#include "device/update.cuh"

template <class P>
__global__ void adamw_naive(const f64* hyper, const f64* norm, const f32* p, const f32* g,
                            const f32* m, const f32* v, f32* new_p, f32* new_m, f32* new_v,
                            i64 size, f32 rate, f32 decay) {
    const i64 i = global_thread();
    if (i >= size) return;
    const AdamwRule<P> rule(hyper, norm, rate, decay);
    f32 parameter = p[i], first = m[i], second = v[i];
    rule.update(parameter, g[i], first, second);
    new_p[i] = parameter;
    new_m[i] = first;
    new_v[i] = second;
}
