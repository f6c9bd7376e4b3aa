// onchip/pack.cu for many networks of one kind (onchip/member.cuh).
//
// Each has `blocks` blocks. Limit: its reads, which are scattered.
#include "onchip/member.cuh"
#include "onchip/packing.cuh"

template <class P>
__global__ void onchip_many_pack(const f32* p0, const f32* p1, const f32* p2, const f32* p3,
                                 const f32* p4, const f32* p5, const f32* p6, const f32* p7,
                                 const f32* p8, const f32* p9, const f32* p10, const f32* p11,
                                 u8* packed, i64 blocks, i64 stride) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    const Member own(blocks, stride);
    const f32* const parameter[12] = {own(p0), own(p1), own(p2), own(p3), own(p4), own(p5),
                                      own(p6), own(p7), own(p8), own(p9), own(p10), own(p11)};
    i64 i = own.block * blockDim.x + threadIdx.x;
    pack_convs<P, 0>(parameter, own(packed), i);
    pack_linears<P, 0>(parameter, own(packed), i);
#endif
}
