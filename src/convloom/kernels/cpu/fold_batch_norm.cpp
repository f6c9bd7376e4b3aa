// Filters and bias with the normalisation behind them folded in: w' = w s, b' = (b - mean) s + shift.
//
// Arguments: w, scale s, mean, w' (out), b' (out), size of a filter, then with P::AFFINE the
// normalisation's bias, then with P::BIAS the convolution's. An item is a filter. Limit: bytes.
#include "simd.h"

namespace convloom {

template <class P>
void fold_batch_norm(const Arg* args, long item, Worker*) {
    const i64 size = args[5].integer;
    const f32* w = (const f32*)args[0].address + item * size;
    const f32 scale = ((const f32*)args[1].address)[item];
    f32* folded = (f32*)args[3].address + item * size;
    const vec s = broadcast(scale);
    for (i64 i = 0; i < size; i += LANES)
        store_tail(folded + i, load_tail(w + i, size - i) * s, size - i);
    f32 bias = 0, shift = 0;
    if constexpr (P::BIAS != 0) bias = ((const f32*)args[6 + P::AFFINE].address)[item];
    if constexpr (P::AFFINE != 0) shift = ((const f32*)args[6].address)[item];
    ((f32*)args[4].address)[item] = (bias - ((const f32*)args[2].address)[item]) * scale + shift;
}

}  // namespace convloom
