// y = c0 x0 + c1 x1 + …, then ReLU if P::RELU; all c are 1 unless P::SCALED.
//
// Arguments: COUNT inputs, y, number of elements, COUNT coefficients (real). An item is CHUNK
// consecutive elements. Terms are added in their order, by multiply-add where there are
// coefficients. Limit: memory bandwidth.
#include "simd.h"

namespace convloom {

template <class P>
void weighted_sum(const Arg* args, long item, Worker*) {
    const f32* x[P::COUNT];
    vec c[P::COUNT];
    CL_UNROLL for (int k = 0; k < P::COUNT; ++k) {
        x[k] = static_cast<const f32*>(args[k].address);
        c[k] = broadcast(f32(args[P::COUNT + 2 + k].real));
    }
    f32* y = static_cast<f32*>(args[P::COUNT].address);
    const i64 last = min((item + 1) * P::CHUNK, args[P::COUNT + 1].integer);
    for (i64 i = item * P::CHUNK; i < last; i += LANES) {
        vec sum = load_tail(x[0] + i, last - i);
        if constexpr (P::SCALED != 0) sum = c[0] * sum;
        CL_UNROLL for (int k = 1; k < P::COUNT; ++k) {
            const vec term = load_tail(x[k] + i, last - i);
            sum = P::SCALED != 0 ? fma(c[k], term, sum) : sum + term;
        }
        store_tail(y + i, P::RELU != 0 ? relu(sum) : sum, last - i);
    }
}

}  // namespace convloom
