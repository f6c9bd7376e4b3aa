// Gradient of a convolution's input, behind the activation that made that input a (MASK), in one
// kernel. Where 2x2 pooling followed the convolution (POOL), dy is the gradient of the pooled map,
// and `index` says which cell of its window each belongs to.
//
// One thread an input, in the memory order of dx.
// Against naive: neither the unmasked gradient nor the full map's gradient is ever stored.
// Limit: as naive.
#include "device/activation.cuh"
#include "device/conv.cuh"

template <class P>
__global__ void conv2d_dgrad_fused(const f32* dy, const u8* index, const f32* w, const f32* a,
                                   f32* dx, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Conv<P>::X_SIZE) return;
    const Place at = Conv<P>::x_place(i);
    f32 gradient;
    if constexpr (P::POOL != 0)
        gradient = Conv<P>::input_gradient(PooledGradient<P>{dy, index}, w, at);
    else
        gradient = Conv<P>::input_gradient(DenseGradient<P>{dy}, w, at);
    dx[i] = P::MASK != 0 ? gated<P>(gradient, a[i]) : gradient;
}
