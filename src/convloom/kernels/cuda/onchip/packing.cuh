// What the threads of onchip/pack.cu do.
#pragma once

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

