// Packs filters for the register tile: [class][group][block of KB outputs][taps][in][KB].
//
// Forward: outputs are filters, `in` their channels, taps in order. Input gradient (FLIP): outputs
// are channels, `in` the filters, and the taps are dealt to the residue classes of the stride, each
// in reverse (conv2d_core.h, Residue). Lanes beyond the outputs are zero. OUT_STEP, IN_STEP,
// GROUP_STEP, ROW_STEP and COL_STEP are the filter tensor's strides in floats, so any layout serves.
// Item: one tap of one block. Limit: one read and one write of the filters.
#include "conv2d_core.h"

namespace convloom {

template <class P>
static f32* packed_tap(f32* packed, i64 block, i64 r, i64 s) {
    constexpr i64 BLOCKS = P::G * ceil_div(P::OUT, P::KB), TAP = P::IN * P::KB;
    if constexpr (!P::FLIP) return packed + ((block * P::R + r) * P::S + s) * TAP;
    const i64 class_r = r * P::DH % P::UH, class_s = s * P::DW % P::UW;
    const Residue row = residue_class(class_r, P::R, P::UH, 0, P::DH);
    const Residue col = residue_class(class_s, P::S, P::UW, 0, P::DW);
    const i64 j = row.taps - 1 - (r - row.first_tap) / row.tap_step;
    const i64 i = col.taps - 1 - (s - col.first_tap) / col.tap_step;
    const i64 before = taps_before(class_r, P::R, P::UH, P::DH) * P::S +
                       row.taps * taps_before(class_s, P::S, P::UW, P::DW);
    return packed + (BLOCKS * before + (block * row.taps + j) * col.taps + i) * TAP;
}

template <class P>
void conv2d_pack(const Arg* args, long item, Worker*) {
    constexpr i64 PER_GROUP = ceil_div(P::OUT, P::KB);
    const i64 s = item % P::S, r = item / P::S % P::R, block = item / (P::R * P::S);
    const i64 group = block / PER_GROUP, first = block % PER_GROUP * P::KB;
    const i64 outputs = min(P::KB, P::OUT - first);
    const f32* w = (const f32*)args[0].address + group * P::GROUP_STEP + first * P::OUT_STEP +
                   r * P::ROW_STEP + s * P::COL_STEP;
    f32* to = packed_tap<P>((f32*)args[1].address, block, r, s);
    if (outputs < P::KB) fill_zero(to, P::IN * P::KB);
    if constexpr (P::OUT_STEP == 1) {
        for (i64 i = 0; i < P::IN; i++)
            for (i64 k = 0; k < outputs; k++) to[i * P::KB + k] = w[i * P::IN_STEP + k];
    } else {
        // Squares of 16, so that both the lines read and the lines written stay in cache.
        for (i64 i0 = 0; i0 < P::IN; i0 += 16)
            for (i64 k = 0; k < outputs; k++)
                for (i64 i = i0; i < min(i0 + 16, P::IN); i++)
                    to[i * P::KB + k] = w[k * P::OUT_STEP + i * P::IN_STEP];
    }
}

}  // namespace convloom
