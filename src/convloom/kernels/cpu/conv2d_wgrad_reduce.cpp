// Adds the chunks' partial filter gradients in order and writes them in the filters' own layout.
//
// OUT_STEP, IN_STEP, GROUP_STEP, ROW_STEP and COL_STEP are the strides of dw in floats.
// Item: one row of taps of one block of KB filters in one slice of channels; after those, with
// BIAS, one item a group for the bias gradient. Limit: bytes, `chunks` reads and one write of dw.
// Arguments: partials, bias partials (0 where absent), dw, db (0 where absent), chunks.
#include "conv2d_wgrad.h"

namespace convloom {

template <class P>
void conv2d_wgrad_reduce(const Arg* args, long item, Worker*) {
    using L = WgradLayout<P>;
    const i64 chunks = args[4].integer;
    constexpr i64 ITEMS = P::G * L::SLICES * L::BLOCKS * P::R;
    if (item >= ITEMS) {
        const i64 group = item - ITEMS, step = P::G * L::BLOCKS * P::KB;
        const f32* from = (const f32*)args[1].address + group * L::BLOCKS * P::KB;
        f32* db = (f32*)args[3].address + group * L::KG;
        for (i64 k = 0; k < L::KG; k++) {
            f32 sum = from[k];
            for (i64 chunk = 1; chunk < chunks; chunk++) sum += from[chunk * step + k];
            db[k] = sum;
        }
        return;
    }
    const i64 r = item % P::R, block = item / P::R;
    const i64 first = block % L::BLOCKS * P::KB, slice = block / L::BLOCKS % L::SLICES;
    const i64 group = block / L::BLOCKS / L::SLICES;
    const i64 filters = min(P::KB, L::KG - first);
    constexpr i64 ROW = L::PIECES * L::RUN_PADDED * P::KB, SQUARE = 16;
    const f32* from = (const f32*)args[0].address + block * L::BLOCK + r * ROW;
    f32* dw = (f32*)args[2].address + group * P::GROUP_STEP + first * P::OUT_STEP +
              r * P::ROW_STEP + slice * P::CS * P::IN_STEP;
    f32 sums[SQUARE][P::KB];
    for (i64 s = 0; s < P::S; s++)
        for (i64 c0 = 0; c0 < P::CS; c0 += SQUARE) {
            const i64 count = min(SQUARE, P::CS - c0);
            const f32* at = from + ((L::ADJACENT ? s * P::CS : s * L::RUN_PADDED) + c0) * P::KB;
            for (i64 i = 0; i < count; i++)
                for (i64 k = 0; k < P::KB; k += LANES) {
                    vec sum = load(at + i * P::KB + k);
                    for (i64 chunk = 1; chunk < chunks; chunk++)
                        sum += load(at + chunk * L::PARTIAL + i * P::KB + k);
                    store(sums[i] + k, sum);
                }
            f32* to = dw + s * P::COL_STEP + c0 * P::IN_STEP;
            for (i64 k = 0; k < filters; k++)
                for (i64 i = 0; i < count; i++)
                    to[k * P::OUT_STEP + i * P::IN_STEP] = sums[i][k];
        }
}

}  // namespace convloom
