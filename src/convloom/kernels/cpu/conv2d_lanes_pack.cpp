// Lays filters of many small groups out by lanes: [class][r][s][j][lane] (conv2d_lanes.h).
//
// Forward: lanes are filters, j their channels. Input gradient (FLIP): lanes are channels, j the
// group's filters, taps reversed within the residue classes of the stride (conv2d_core.h).
// Item: one tap. Limit: one read and one write of the filters.
// Arguments: filters, packed.
#include "conv2d_lanes.h"

namespace convloom {

template <class P>
void conv2d_lanes_pack(const Arg* args, long item, Worker*) {
    using L = Lanes<P>;
    const i64 r = item / P::S, s = item % P::S;
    i64 at = item;
    if constexpr (P::FLIP) {
        const i64 class_r = r * P::DH % P::UH, class_s = s * P::DW % P::UW;
        const Residue row = residue_class(class_r, P::R, P::UH, 0, P::DH);
        const Residue col = residue_class(class_s, P::S, P::UW, 0, P::DW);
        at = taps_before(class_r, P::R, P::UH, P::DH) * P::S +
             row.taps * taps_before(class_s, P::S, P::UW, P::DW) +
             (row.taps - 1 - (r - row.first_tap) / row.tap_step) * col.taps + col.taps - 1 -
             (s - col.first_tap) / col.tap_step;
    }
    const f32* w = (const f32*)args[0].address + r * P::ROW_STEP + s * P::COL_STEP;
    f32* to = (f32*)args[1].address + at * L::PIXEL;
    fill_zero(to, L::PIXEL);
    for (i64 j = 0; j < P::IN; j++)
        for (i64 l = 0; l < L::TOTAL; l++)
            to[j * L::PADDED + l] = w[l / P::OUT * P::GROUP_STEP + l % P::OUT * P::OUT_STEP +
                                      j * P::IN_STEP];
}

}  // namespace convloom
