// What the sparse gradient kernel, its packing and its reduction agree upon.
//
// Filters and their partial gradients lie as [group][slice of channels][filter][R][PIECES]
// [RUN_PADDED]: RUN contiguous taps-and-channels of the input on lanes, rounded up to whole tiles
// of TILE floats. Packed filters are zero beyond RUN; partial gradients there are never read.
#pragma once

#include "conv2d_core.h"

namespace convloom {

template <class P>
struct SparseLayout {
    static constexpr i64 KG = P::K / P::G, SLICES = P::C / P::CS;
    static constexpr bool ADJACENT = P::DW == 1;
    static constexpr i64 PIECES = ADJACENT ? 1 : P::S;
    static constexpr i64 RUN = ADJACENT ? P::S * P::CS : P::CS;
    static constexpr i64 RUN_PADDED = round_up(RUN, P::TILE);
    static constexpr i64 FILTER = P::R * PIECES * RUN_PADDED;
    static constexpr i64 PARTIAL = P::G * SLICES * KG * FILTER;
};

}  // namespace convloom
