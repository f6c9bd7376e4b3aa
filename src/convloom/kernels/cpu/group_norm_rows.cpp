// A number a group as a row of channels: what norm_grad_sums and norm_grad_apply take as means.
//
// Arguments: numbers (image, group), rows (out; image, channel), channels, groups. An item is an
// image.
#include "simd.h"

namespace convloom {

template <class P>
void group_norm_rows(const Arg* args, long item, Worker*) {
    const i64 channels = args[2].integer, groups = args[3].integer, width = channels / groups;
    const f32* numbers = (const f32*)args[0].address + item * groups;
    f32* row = (f32*)args[1].address + item * channels;
    for (i64 c = 0; c < channels; ++c) row[c] = numbers[c / width];
}

}  // namespace convloom
