// partial[i] = sum over EACH neighbouring elements of the loss KIND of x and its target t
//
// One thread a partial sum, which is float64; their mean is mean_of_partials. t is x where the loss
// has no target.
// Limit: 8 bytes of loads an element, which neighbouring threads make far from one another.
#include "device/index.cuh"
#include "device/pointwise_loss.cuh"

template <class P>
__global__ void pointwise_loss_naive(const f32* x, const f32* t, f64* partial, i64 size, f32 a) {
    const i64 i = global_thread(), first = i * P::EACH;
    if (first >= size) return;
    f64 sum = 0.0;
    for (i64 k = first; k < least(first + P::EACH, size); ++k)
        sum += f64(loss_value<P::KIND>(x[k], t[k], a));
    partial[i] = sum;
}
