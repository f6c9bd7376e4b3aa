// dx[n,c,h,w] = sum over k, r, s of dy[n,k,p,q] * w[k,c,r,s], where (p, q) is the output whose tap
// (r, s) met (h, w), if there is one.
//
// One thread an input, in the memory order of dx: it gathers, so nothing is added by two threads.
// Limit: 2*K*R*S FLOPs an input (less with a stride), every operand read from global memory.
#include "device/conv.cuh"

template <class P>
__global__ void conv2d_dgrad_naive(const f32* dy, const f32* w, f32* dx, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Conv<P>::X_SIZE) return;
    dx[i] = Conv<P>::input_gradient(DenseGradient<P>{dy}, w, Conv<P>::x_place(i));
}
