// partial[item] = sum of squares of CHUNK elements of one tensor, in float64.
//
// Arguments: partial (address), then for n = P::COUNT tensors each: g (addresses), size. The
// partials are added in order by gradient_norm_root, so the norm is the same for any threads.
// Limit: memory bandwidth.
#include "f64.h"
#include "segments.h"

namespace convloom {

template <class P>
void gradient_norm(const Arg* args, long item, Worker*) {
    constexpr long n = P::COUNT;
    f64* partial = static_cast<f64*>(args[0].address);
    const Chunk chunk = find_chunk<P::CHUNK>(args + 1 + n, n, item);
    const f32* g = static_cast<const f32*>(args[1 + chunk.tensor].address);
    dvec sums[4] = {};
    i64 i = chunk.first;
    for (; i + 4 * HALF <= chunk.last; i += 4 * HALF) {
        CL_UNROLL for (int k = 0; k < 4; ++k) {
            const dvec value = widen(g + i + k * HALF);
            sums[k] += value * value;
        }
    }
    f64 total = horizontal_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < chunk.last; ++i) total += f64(g[i]) * f64(g[i]);
    partial[item] = total;
}

}  // namespace convloom
