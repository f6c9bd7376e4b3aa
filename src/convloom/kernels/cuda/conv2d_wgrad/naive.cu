// dw[k,c,r,s] = sum over n, p, q of x[n, c, p*u + r*d - pad, q*u + s*d - pad] * dy[n,k,p,q]
//
// One thread a weight, in the memory order of dw; it walks the whole batch.
// Limit: the number of weights is all the parallelism there is; 2*N*P*Q FLOPs a thread.
#include "device/conv.cuh"

template <class P>
__global__ void conv2d_wgrad_naive(const f32* x, const f32* dy, f32* dw, i64 n) {
    const i64 i = global_thread();
    if (i >= P::K * Conv<P>::DEPTH) return;
    dw[i] = Conv<P>::filter_gradient(x, DenseGradient<P>{dy}, Conv<P>::w_place(i), n);
}
