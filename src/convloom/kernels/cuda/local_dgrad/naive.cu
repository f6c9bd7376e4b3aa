// dx: the outputs that met an input, each times the weight it met it with
//
// One thread an input, in the memory order of dx.
// Limit: every product reads its operands from memory.
#include "device/local.cuh"

template <class P>
__global__ void local_dgrad_naive(const f32* dy, const f32* w, f32* dx, i64 n) {
    const i64 i = global_thread();
    if (i >= n * Conv<P>::X_SIZE) return;
    const Place at = Conv<P>::x_place(i);
    const i64 group = at.channel / P::C, c = at.channel % P::C;
    f32 sum = 0.0f;
    for (i64 r = 0; r < P::R; ++r) {
        const i64 row = at.row + P::PH - r * P::DH;
        if (row < 0 || row % P::UH != 0 || row / P::UH >= P::OH) continue;
        for (i64 s = 0; s < P::S; ++s) {
            const i64 col = at.col + P::PW - s * P::DW;
            if (col < 0 || col % P::UW != 0 || col / P::UW >= P::OW) continue;
            const i64 p = row / P::UH, q = col / P::UW;
            for (i64 k = group * Conv<P>::GROUP; k < (group + 1) * Conv<P>::GROUP; ++k)
                sum = fmaf(dy[Conv<P>::y_offset(at.image, k, p, q)],
                           w[Local<P>::w_offset(p, q, k, c, r, s)], sum);
        }
    }
    dx[i] = sum;
}
