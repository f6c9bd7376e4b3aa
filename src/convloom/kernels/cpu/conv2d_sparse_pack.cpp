// Lays filters out for the sparse input gradient (conv2d_sparse.h).
// Item: one filter of one slice of channels. Limit: one read and one write of the filters.
// Arguments: filters, packed.
#include "conv2d_sparse.h"

namespace convloom {

template <class P>
void conv2d_sparse_pack(const Arg* args, long item, Worker*) {
    using L = SparseLayout<P>;
    const i64 k = item % L::KG, slice = item / L::KG % L::SLICES, group = item / L::KG / L::SLICES;
    const f32* w = (const f32*)args[0].address + group * P::GROUP_STEP + k * P::OUT_STEP +
                   slice * P::CS * P::IN_STEP;
    f32* to = (f32*)args[1].address + item * L::FILTER;
    fill_zero(to, L::FILTER);
    for (i64 r = 0; r < P::R; r++)
        for (i64 s = 0; s < P::S; s++) {
            const i64 at = L::ADJACENT ? r * L::RUN_PADDED + s * P::CS
                                       : (r * P::S + s) * L::RUN_PADDED;
            for (i64 c = 0; c < P::CS; c++)
                to[at + c] = w[r * P::ROW_STEP + s * P::COL_STEP + c * P::IN_STEP];
        }
}

}  // namespace convloom
