// dw[p,q,k,c,r,s] = sum over images of x * dy[n,k,p,q]
//
// One thread a weight, in the memory order of dw. Padding is multiplied like any other 0.
// Limit: every product reads its operands from memory.
#include "device/local.cuh"

template <class P>
__global__ void local_wgrad_naive(const f32* x, const f32* dy, f32* dw, i64 n) {
    const i64 i = global_thread();
    if (i >= Local<P>::PIXELS * P::K * Conv<P>::DEPTH) return;
    const Place at = Conv<P>::w_place(i);
    const i64 k = at.image % P::K, pixel = at.image / P::K, p = pixel / P::OW, q = pixel % P::OW;
    const i64 channel = k / Conv<P>::GROUP * P::C + at.channel;
    f32 sum = 0.0f;
    for (i64 image = 0; image < n; ++image) {
        const f32 value = Conv<P>::padded(x, image, channel, p * P::UH + at.row * P::DH - P::PH,
                                          q * P::UW + at.col * P::DW - P::PW);
        sum = fmaf(value, dy[Conv<P>::y_offset(image, k, p, q)], sum);
    }
    dw[i] = sum;
}
