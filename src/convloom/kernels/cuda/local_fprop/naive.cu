// y[n,k,p,q] = sum over c,r,s of x * w[p,q,k,c,r,s]
//
// One thread an output, in the memory order of y. Padding is multiplied like any other 0.
// Limit: every product reads its operands from memory.
#include "device/local.cuh"

template <class P>
__global__ void local_fprop_naive(const f32* x, const f32* w, f32* y, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Conv<P>::Y_SIZE) return;
    const Place at = Conv<P>::y_place(i);
    const i64 first = at.channel / Conv<P>::GROUP * P::C;
    f32 sum = 0.0f;
    for (i64 r = 0; r < P::R; ++r)
        for (i64 s = 0; s < P::S; ++s)
            for (i64 c = 0; c < P::C; ++c) {
                const f32 value =
                    Conv<P>::padded(x, at.image, first + c, at.row * P::UH + r * P::DH - P::PH,
                                    at.col * P::UW + s * P::DW - P::PW);
                const i64 from = Local<P>::w_offset(at.row, at.col, at.channel, c, r, s);
                sum = fmaf(value, w[from], sum);
            }
    y[i] = sum;
}
