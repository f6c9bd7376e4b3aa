// Filters of pooled_dgrad.cpp, one vector of channels at a time: [C/LANES][K][9][LANES].
//
// What the inner loop reads for one vector of channels is then contiguous, and channels beyond C
// are zero. Arguments: w (KRSC), packed. Constants: C, K. An item packs 16 channels.
// Limit: memory, 72 bytes a channel and filter.
#include "simd.h"

namespace convloom {

template <class P>
void pooled_pack(const Arg* args, long item, Worker*) {
    const f32* w = static_cast<const f32*>(args[0].address);
    f32* packed = static_cast<f32*>(args[1].address);
    for (i64 c = item * 16; c < item * 16 + 16; c += LANES) {
        f32* to = packed + c * P::K * 9;
        for (i64 i = 0; i < P::K * 9; i++)
            store(to + i * LANES, load_tail(w + i * P::C + c, P::C - c));
    }
}

}  // namespace convloom
