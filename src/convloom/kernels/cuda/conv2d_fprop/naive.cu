// y[n,k,p,q] = b[k] + sum over c, r, s of x[n, c, p*u + r*d - pad, q*u + s*d - pad] * w[k,c,r,s]
//
// One thread an output, in the memory order of y. It walks its window and reads every operand
// from global memory, as the formula says.
// Limit: 2*C*R*S FLOPs an output against 8*C*R*S bytes of loads, which the caches must serve.
#include "device/conv.cuh"

template <class P>
__global__ void conv2d_fprop_naive(const f32* x, const f32* w, const f32* bias, f32* y, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Conv<P>::Y_SIZE) return;
    const Place at = Conv<P>::y_place(i);
    const f32 sum = Conv<P>::output(x, w, at);
    y[i] = P::BIAS != 0 ? sum + bias[at.channel] : sum;
}
