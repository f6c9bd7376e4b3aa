// Which building blocks a chain is put together from: those of tensor cores, or if EXACT those of
// float32.
#pragma once

#include "onchip/conv_dgrad.cuh"
#include "onchip/conv_forward.cuh"
#include "onchip/conv_wgrad.cuh"
#include "onchip/exact_conv.cuh"
#include "onchip/exact_linear.cuh"
#include "onchip/exact_wgrad.cuh"
#include "onchip/linear.cuh"

template <class P>
struct Kit {
    static constexpr bool EXACT = P::EXACT != 0;
    // Bytes of an element that is kept for a matrix's gradient.
    static constexpr int ELEMENT = EXACT ? 4 : Format<P>::BYTES;
    template <int I>
    using Forward = typename Pick<EXACT, ExactForward<P, I>, ConvForward<P, I>>::Type;
    template <int I>
    using Dgrad = typename Pick<EXACT, ExactDgrad<P, I>, ConvDgrad<P, I>>::Type;
    template <int I>
    using Wgrad = typename Pick<EXACT, ExactWgrad<P, I>, ConvWgrad<P, I>>::Type;
    template <int I>
    using Weights = typename Pick<EXACT, ExactWeights<P, I>, ConvWeights<P, I>>::Type;
    template <int J>
    using Layer = typename Pick<EXACT, ExactLinear<P, J>, LinearLayer<P, J>>::Type;
};
