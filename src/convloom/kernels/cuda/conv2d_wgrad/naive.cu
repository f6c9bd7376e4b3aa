// dw[k,c,r,s] = sum over n, p, q of x[n, c, p*u + r*d - pad, q*u + s*d - pad] * dy[n,k,p,q]
//
// One thread a weight, in the memory order of dw, and chunk of the batch: with `images` images a
// chunk, chunk c writes its sums at dw + c * weights. Where there are several, sum_partials adds
// them up: else so few threads would each wait for the whole batch.
// Limit: 2*N*P*Q FLOPs a weight, every operand read from global memory.
#include "device/conv.cuh"

template <class P>
__global__ void conv2d_wgrad_naive(const f32* x, const f32* dy, f32* dw, i64 n, i64 images) {
    constexpr i64 WEIGHTS = P::K * Conv<P>::DEPTH;
    const i64 i = global_thread(), first = i / WEIGHTS * images;
    if (i >= WEIGHTS && first >= n) return;
    const Place at = Conv<P>::w_place(i % WEIGHTS);
    const DenseGradient<P> gradient{dy};
    dw[i] = Conv<P>::filter_gradient(x, gradient, at, first, least(first + images, n));
}
