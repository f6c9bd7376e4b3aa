// y = many fused multiply-adds: what the arithmetic of the device can do at most
//
// P::CHAINS independent chains a thread hide the latency of one; each takes P::STEPS links. a and b
// come at run time, so that nothing can be worked out before, and the sum is stored, so that
// nothing can be left out. Limit: 2 CHAINS STEPS floating-point operations a thread.
#include "device/index.cuh"

template <class P>
__global__ void peak_fma_naive(f32* y, f32 a, f32 b) {
    constexpr i32 CHAINS = i32(P::CHAINS), STEPS = i32(P::STEPS);
    const i64 i = global_thread();
    f32 chain[CHAINS];
#pragma unroll
    for (i32 k = 0; k < CHAINS; ++k) chain[k] = f32(i + k);
#pragma unroll 8
    for (i32 step = 0; step < STEPS; ++step) {
#pragma unroll
        for (i32 k = 0; k < CHAINS; ++k) chain[k] = fmaf(chain[k], a, b);
    }
    f32 sum = 0;
#pragma unroll
    for (i32 k = 0; k < CHAINS; ++k) sum += chain[k];
    y[i] = sum;
}
