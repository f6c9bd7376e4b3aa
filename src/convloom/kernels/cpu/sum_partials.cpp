// Adds equally long partial results in order: out[i] = sum over chunks of partials[chunk][i].
// Item: CHUNK elements. Limit: bytes, one read of every partial.
// Arguments: partials, out, elements, chunks.
#include "simd.h"

namespace convloom {

template <class P>
void sum_partials(const Arg* args, long item, Worker*) {
    const i64 elements = args[2].integer, chunks = args[3].integer;
    const f32* partials = (const f32*)args[0].address;
    f32* out = (f32*)args[1].address;
    const i64 end = min((item + 1) * P::CHUNK, elements);
    for (i64 i = item * P::CHUNK; i < end; i += LANES) {
        vec sum = load_tail(partials + i, end - i);
        for (i64 chunk = 1; chunk < chunks; chunk++)
            sum += load_tail(partials + chunk * elements + i, end - i);
        store_tail(out + i, sum, end - i);
    }
}

}  // namespace convloom
