// packed = the weights of all stages as onchip/step.cu reads them (onchip/weights.cuh), from the
// parameters.
//
// One thread for a fragment's lane, 8 bytes, or 16 bytes of a matrix; if EXACT for a number, and
// matrices stay as they are. Limit: its reads, which are
// scattered.
#include "onchip/packing.cuh"

template <class P>
__global__ void onchip_pack(const f32* p0, const f32* p1, const f32* p2, const f32* p3,
                            const f32* p4, const f32* p5, const f32* p6, const f32* p7,
                            const f32* p8, const f32* p9, const f32* p10, const f32* p11,
                            u8* packed) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    const f32* const parameter[12] = {p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11};
    i64 i = global_thread();
    pack_convs<P, 0>(parameter, packed, i);
    pack_linears<P, 0>(parameter, packed, i);
#endif
}
