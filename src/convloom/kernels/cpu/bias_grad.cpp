// Bias gradient: the sum over images and pixels of every channel.
//
// Item: a chunk of the outer positions; each writes its own row of sums (conv's rule: chunks depend
// on the problem only). Positions are images x pixels with channels contiguous, or, for NCHW
// (INNER > 1), images with INNER pixels a channel. Limit: bytes, one read of dy.
// Arguments: dy, partials, positions, chunks, inner.
#include "simd.h"

namespace convloom {

template <class P>
void bias_grad(const Arg* args, long item, Worker*) {
    const i64 positions = args[2].integer, chunks = args[3].integer, inner = args[4].integer;
    const i64 first = positions * item / chunks, last = positions * (item + 1) / chunks;
    const f32* dy = (const f32*)args[0].address;
    f32* sums = (f32*)args[1].address + item * P::K;
    if constexpr (P::PLANAR) {
        for (i64 k = 0; k < P::K; k++) {
            vec sum = zero();
            f32 rest = 0;
            for (i64 n = first; n < last; n++) {
                const f32* plane = dy + (n * P::K + k) * inner;
                i64 i = 0;
                for (; i + LANES <= inner; i += LANES) sum += load(plane + i);
                for (; i < inner; i++) rest += plane[i];
            }
            sums[k] = horizontal_sum(sum) + rest;
        }
    } else {
        for (i64 k = 0; k < P::K; k += LANES) {
            const i64 left = P::K - k;
            vec sum[4] = {zero(), zero(), zero(), zero()};
            i64 i = first;
            for (; i + 4 <= last; i += 4)
                CL_UNROLL for (int j = 0; j < 4; j++)
                    sum[j] += load_tail(dy + (i + j) * P::K + k, left);
            for (; i < last; i++) sum[0] += load_tail(dy + i * P::K + k, left);
            store_tail(sums + k, (sum[0] + sum[1]) + (sum[2] + sum[3]), left);
        }
    }
}

}  // namespace convloom
