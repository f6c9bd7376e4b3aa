// Matrix fragments as they are: KIND 0: bf16, 1: f16, 2: tf32 products of one warp; 3, 4: ldmatrix;
// 5: numbers rounded to tf32; 6: bytes picked
#include "device/ptx.cuh"

template <class P>
__global__ void sound_fragments(const float* a_bits, const float* b_bits, float* out) {
    const int lane = threadIdx.x;
    const unsigned* a_words = reinterpret_cast<const unsigned*>(a_bits) + lane * 4;
    const unsigned* b_words = reinterpret_cast<const unsigned*>(b_bits) + lane * 2;
    unsigned r[4] = {};
    if constexpr (P::KIND < 3) {
        const unsigned a[4] = {a_words[0], a_words[1], a_words[2], a_words[3]};
        const unsigned b[2] = {b_words[0], b_words[1]};
        const float c[4] = {1.0f, 2.0f, 3.0f, 4.0f};
        float d[4];
        if constexpr (P::KIND == 0) mma_m16n8k16_bf16(d, a, b, c);
        if constexpr (P::KIND == 1) mma_m16n8k16_f16(d, a, b, c);
        if constexpr (P::KIND == 2) mma_m16n8k8_tf32(d, a, b, c);
        for (int i = 0; i < 4; ++i) out[lane * 4 + i] = d[i];
    } else if constexpr (P::KIND == 5) {
        for (int i = 0; i < 4; ++i)
            reinterpret_cast<unsigned*>(out)[lane * 4 + i] = cvt_tf32(a_bits[lane * 4 + i]);
    } else if constexpr (P::KIND == 6) {
        for (int i = 0; i < 4; ++i)
            reinterpret_cast<unsigned*>(out)[lane * 4 + i] =
                prmt(a_words[i], b_words[0], b_words[1]);
    } else {
        __shared__ uint4 rows[32];
        rows[lane] = make_uint4(a_words[0], a_words[1], a_words[2], a_words[3]);
        __syncwarp();
        if constexpr (P::KIND == 3) ldmatrix_x4(r, rows + lane);
        if constexpr (P::KIND == 4) ldmatrix_x4_trans(r, rows + lane);
        for (int i = 0; i < 4; ++i)
            reinterpret_cast<unsigned*>(out)[lane * 4 + i] = r[i];
    }
}
