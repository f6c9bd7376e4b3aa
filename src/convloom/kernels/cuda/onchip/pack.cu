// packed = a fully connected weight as bfloat16, twice: planes of eight features, 16 bytes an
// output, which the forward product reads; and planes of eight outputs, 16 bytes a feature, for the
// gradient. Features lie as the step keeps them (onchip/shape.cuh), padding is zero.
//
// One thread for 16 bytes, of layer LAYER. Limit: reading the weight twice.
#include "onchip/weights.cuh"

template <class P>
__global__ void onchip_pack(const f32* w, u8* packed) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    using Linear = LinearStage<P, int(P::LAYER)>;
    constexpr int O = Linear::O, WIDTH = Linear::WIDTH;
    constexpr int FORWARD = WIDTH / 8 * O, BACKWARD = Linear::OUT / 8 * WIDTH;
    const i64 i = global_thread();
    uint4 eight;
    if (i < FORWARD) {
        eight = linear_weights<Linear>(w, int(i / O), int(i % O));
    } else if (i < FORWARD + BACKWARD) {
        const int plane = int(i - FORWARD) / WIDTH, feature = int(i - FORWARD) % WIDTH;
        const int column = Linear::column(feature);
        f32 part[8];
        for (int e = 0; e < 8; ++e) {
            const int output = plane * 8 + e;
            part[e] = column >= 0 && output < O ? w[i64(output) * Linear::I + column] : 0.0f;
        }
        eight = make_uint4(cvt_bf16x2(part[0], part[1]), cvt_bf16x2(part[2], part[3]),
                           cvt_bf16x2(part[4], part[5]), cvt_bf16x2(part[6], part[7]));
    } else {
        return;
    }
    reinterpret_cast<uint4*>(packed + Linear::PACKED)[i] = eight;
#endif
}
