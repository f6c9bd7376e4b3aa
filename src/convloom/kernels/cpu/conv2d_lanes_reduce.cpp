// Adds the chunks' partial gradients of conv2d_lanes_wgrad in order and writes dw in its own layout.
// Item: one row of taps; after those, with BIAS, one for the bias gradient. Limit: bytes.
// Arguments: partials, dw, db (0 where absent), chunks.
#include "conv2d_lanes.h"

namespace convloom {

template <class P>
void conv2d_lanes_reduce(const Arg* args, long item, Worker*) {
    using L = Lanes<P>;
    constexpr bool ADJACENT = P::DW == 1;
    constexpr i64 RUN = ADJACENT ? P::S * P::IN : P::IN;
    constexpr i64 RUN_PADDED = round_up(RUN, P::A);
    constexpr i64 ROW = (ADJACENT ? 1 : P::S) * RUN_PADDED * L::PADDED;
    constexpr i64 PARTIAL = P::R * ROW + L::PADDED;
    const f32* partials = (const f32*)args[0].address + item * ROW;
    const i64 chunks = args[3].integer;
    const bool bias = item == P::R;
    for (i64 t = 0; t < (bias ? 1 : P::S * P::IN); t++) {
        const i64 s = t / P::IN, j = t % P::IN;
        const i64 at = (ADJACENT ? t : s * RUN_PADDED + j) * L::PADDED;
        f32* to = bias ? (f32*)args[2].address
                       : (f32*)args[1].address + item * P::ROW_STEP + s * P::COL_STEP +
                             j * P::IN_STEP;
        for (i64 l = 0; l < L::TOTAL; l += LANES) {
            vec sum = load(partials + at + l);
            for (i64 chunk = 1; chunk < chunks; chunk++)
                sum += load(partials + chunk * PARTIAL + at + l);
            f32 lanes[LANES];
            store(lanes, sum);
            for (i64 i = 0; i < min(LANES, L::TOTAL - l); i++)
                to[(l + i) * (bias ? 1 : P::OUT_STEP)] = lanes[i];
        }
    }
}

}  // namespace convloom
