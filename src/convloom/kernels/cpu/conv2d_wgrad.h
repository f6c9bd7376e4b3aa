// What the filter-gradient kernel and the kernel that reduces its partial sums agree upon.
//
// One partial is [group][slice of channels][block of KB filters][R][PIECES][RUN_PADDED][KB]:
// filters on lanes, RUN contiguous taps-and-channels of the input outside. RUN is rounded up to
// whole tiles of A; the surplus, and lanes beyond the filters, hold sums that nobody reads.
#pragma once

#include "conv2d_core.h"

namespace convloom {

template <class P>
struct WgradLayout {
    static constexpr i64 KG = P::K / P::G, BLOCKS = ceil_div(KG, P::KB);
    static constexpr i64 SLICES = P::C / P::CS;
    static constexpr bool ADJACENT = P::DW == 1;
    static constexpr i64 PIECES = ADJACENT ? 1 : P::S;
    static constexpr i64 RUN = ADJACENT ? P::S * P::CS : P::CS;
    static constexpr i64 RUN_PADDED = round_up(RUN, P::A);
    static constexpr i64 BLOCK = P::R * PIECES * RUN_PADDED * P::KB;
    static constexpr i64 PARTIAL = P::G * SLICES * BLOCKS * BLOCK;
};

}  // namespace convloom
