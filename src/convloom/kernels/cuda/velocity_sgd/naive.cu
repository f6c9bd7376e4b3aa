// cuda-convnet's update: v = momentum * v - eps * g - eps * decay * w;  w = w + v
//
// One thread an element of one parameter; a launch for each. Its rates are hyper[which],
// hyper[count + which] and hyper[2 * count + which]; with DIVIDED, eps and decay are divided by the
// divisor of its row of `columns` elements. With ADAPTIVE, where momentum is that of the means m:
//     m = momentum m + (1 - momentum) g;  s = momentum s + (1 - momentum) g^2
//     v = 0.9 v - eps * g / sqrt(s + m + floor);  w = w + v
// With SUMMING g is the mean of `every` minibatches: hyper[3 * count] says whether their sum goes on,
// hyper[3 * count + 1] whether this is the last of them; before it nothing but the sum is new.
// What is new may lie where the old does.
// Limit: 20 bytes of memory traffic an element; small parameters cost a launch each.
#include "device/index.cuh"

template <class P>
__global__ void velocity_sgd_naive(const f64* hyper, i64 which, i64 count, const f32* w,
                                   const f32* g, const f32* v, f32* new_w, f32* new_v, i64 size,
                                   const i64* divisors, i64 columns, const f32* mean,
                                   const f32* square, f32* new_mean, f32* new_square, f32 floor,
                                   const f32* sum, f32* new_sum, i64 every) {
    const i64 i = global_thread();
    if (i >= size) return;
    f32 gradient = g[i];
    if constexpr (P::SUMMING) {
        if (hyper[3 * count] != 0) gradient += sum[i];
        new_sum[i] = gradient;
        if (hyper[3 * count + 1] == 0) {
            new_w[i] = w[i];
            new_v[i] = v[i];
            if constexpr (P::ADAPTIVE) {
                new_mean[i] = mean[i];
                new_square[i] = square[i];
            }
            return;
        }
        gradient /= f32(every);
    }
    f32 eps = f32(hyper[which]), decay = f32(hyper[2 * count + which]);
    if constexpr (P::DIVIDED) {
        const f32 divisor = f32(divisors[i / columns]);
        eps /= divisor;
        decay /= divisor;
    }
    decay *= eps;
    const f32 momentum = f32(hyper[count + which]), old = w[i];
    f32 velocity;
    if constexpr (P::ADAPTIVE) {
        const f32 rest = 1.0f - momentum;
        const f32 m = fmaf(rest, gradient, momentum * mean[i]);
        const f32 s = fmaf(rest, gradient * gradient, momentum * square[i]);
        new_mean[i] = m;
        new_square[i] = s;
        velocity = fmaf(-eps, gradient / sqrtf(s + m + floor), 0.9f * v[i]);
    } else {
        velocity = fmaf(-eps, gradient, momentum * v[i]);
        if (decay != 0.0f) velocity = fmaf(-decay, old, velocity);  // 0 times infinity would be NaN
    }
    new_v[i] = velocity;
    new_w[i] = old + velocity;
}
