// packed = the weights of all stages as onchip/step.cu reads them (onchip/weights.cuh), from the
// parameters.
//
// One thread for a fragment's lane, 8 bytes, or 16 bytes of a matrix; if EXACT for a number, and
// matrices stay as they are. Limit: its reads, which are
// scattered.
#include "onchip/kit.cuh"

// The convolutions from the I-th on; `i` counts from this one's first item.
template <class P, int I>
__device__ __forceinline__ void pack_convs(const f32* const (&parameter)[12], Bytes* packed,
                                           i64& i) {
    if constexpr (I < P::CONVS) {
        using Weights = typename Kit<P>::template Weights<I>;
        if (i >= 0 && i < Weights::ITEMS)
            Weights::pack(packed, parameter[ConvStage<P, I>::WEIGHT], int(i));
        i -= Weights::ITEMS;
        pack_convs<P, I + 1>(parameter, packed, i);
    }
}

template <class P, int J>
__device__ __forceinline__ void pack_linears(const f32* const (&parameter)[12], Bytes* packed,
                                             i64& i) {
    if constexpr (J < P::LINEARS && P::EXACT == 0) {
        using Weights = LinearWeights<P, J>;
        constexpr i64 SIZE = i64(Weights::FORWARD) + Weights::BACKWARD;
        if (i >= 0 && i < SIZE)
            reinterpret_cast<uint4*>(packed + Weights::AT)[i] =
                Weights::pack(parameter[Weights::Linear::WEIGHT], int(i));
        i -= SIZE;
        pack_linears<P, J + 1>(parameter, packed, i);
    }
}

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
