// Adds the chunks' partial gradients of conv2d_sparse in order and writes dw in its own layout.
// Item: one filter of one slice; after those, with BIAS, one for all bias gradients.
// Limit: bytes, `chunks` reads and one write of dw.
// Arguments: partials, bias partials (0 where absent), dw, db (0 where absent), chunks.
#include "conv2d_sparse.h"

namespace convloom {

template <class P>
void conv2d_sparse_reduce(const Arg* args, long item, Worker*) {
    using L = SparseLayout<P>;
    const i64 chunks = args[4].integer;
    if (item == P::G * L::SLICES * L::KG) {
        const f32* from = (const f32*)args[1].address;
        for (i64 k = 0; k < P::K; k += LANES) {
            vec sum = load_tail(from + k, P::K - k);
            for (i64 chunk = 1; chunk < chunks; chunk++)
                sum += load_tail(from + chunk * P::K + k, P::K - k);
            store_tail((f32*)args[3].address + k, sum, P::K - k);
        }
        return;
    }
    const i64 k = item % L::KG, slice = item / L::KG % L::SLICES, group = item / L::KG / L::SLICES;
    const f32* from = (const f32*)args[0].address + item * L::FILTER;
    f32* dw = (f32*)args[2].address + group * P::GROUP_STEP + k * P::OUT_STEP +
              slice * P::CS * P::IN_STEP;
    for (i64 r = 0; r < P::R; r++)
        for (i64 s = 0; s < P::S; s++) {
            const f32* at = from + (L::ADJACENT ? r * L::RUN_PADDED + s * P::CS
                                                : (r * P::S + s) * L::RUN_PADDED);
            f32* to = dw + r * P::ROW_STEP + s * P::COL_STEP;
            for (i64 c = 0; c < P::CS; c += LANES) {
                const i64 left = P::CS - c;
                vec sum = load_tail(at + c, left);
                for (i64 chunk = 1; chunk < chunks; chunk++)
                    sum += load_tail(at + chunk * L::PARTIAL + c, left);
                if constexpr (P::IN_STEP == 1) {
                    store_tail(to + c, sum, left);
                } else {
                    f32 lanes[LANES];
                    store(lanes, sum);
                    for (i64 i = 0; i < min(left, LANES); i++) to[(c + i) * P::IN_STEP] = lanes[i];
                }
            }
        }
}

}  // namespace convloom
