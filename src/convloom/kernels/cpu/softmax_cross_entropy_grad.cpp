// dlogits = (probability * sum(t) - t) * dloss / N, where t is one-hot or given, then smoothed.
//
// Arguments: probability (N,K), target, dloss, dlogits, N, smoothing (real). An item is ROWS
// samples. Limit: memory bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void softmax_cross_entropy_grad(const Arg* args, long item, Worker*) {
    const i64 N = args[4].integer;
    const f32 scale = *static_cast<const f32*>(args[2].address) / f32(N);
    const f32 kept = f32(1 - args[5].real), spread = f32(args[5].real / P::K);
    const i64 last = min((item + 1) * P::ROWS, N);
    for (i64 n = item * P::ROWS; n < last; ++n) {
        const f32* probability = static_cast<const f32*>(args[0].address) + n * P::K;
        f32* out = static_cast<f32*>(args[3].address) + n * P::K;
        if constexpr (P::PROBABILITY != 0) {
            const f32* t = static_cast<const f32*>(args[1].address) + n * P::K;
            f64 total = 0;
            for (i64 k = 0; k < P::K; ++k) total += t[k] * kept + spread;
            const f32 share = f32(total);
            for (i64 k = 0; k < P::K; ++k)
                out[k] = (probability[k] * share - (t[k] * kept + spread)) * scale;
        } else {
            const i64 label = static_cast<const i64*>(args[1].address)[n];
            for (i64 k = 0; k < P::K; ++k)
                out[k] = (probability[k] - ((k == label ? kept : 0.0f) + spread)) * scale;
        }
    }
}

}  // namespace convloom
