// dx = a g - b - c (x - mean), by channel, where g is what passes the activation P::ACT of dy.
//
// Arguments: dy, x, mean, factors ((3, channel): a, b, c), dx, channels, rows of an image, chunks of
// an image, step (what mean advances from image to image; factors advance by three times as much),
// then what norm_gate.h takes. An item is a chunk of rows. Limit: bytes.
#include "norm_gate.h"

namespace convloom {

template <class P>
void norm_grad_apply(const Arg* args, long item, Worker*) {
    const i64 channels = args[5].integer, step = args[8].integer;
    const Rows rows = chunk_of_rows(item, args[6].integer, args[7].integer);
    const i64 count = rows.last - rows.first, at = rows.first * channels;
    const f32* dy = (const f32*)args[0].address + at;
    const f32* x = (const f32*)args[1].address + at;
    const f32* means = (const f32*)args[2].address + rows.image * step;
    const f32* factors = (const f32*)args[3].address + 3 * rows.image * step;
    f32* dx = (f32*)args[4].address + at;
    channel_blocks<P>(channels, [&](i64 k, auto block) __attribute__((always_inline)) {
        constexpr int V = decltype(block)::VECTORS;
        vec mean[V], a[V], b[V], c[V];
        CL_UNROLL for (int j = 0; j < V; ++j) {
            mean[j] = block.load(means + k, j);
            a[j] = block.load(factors + k, j);
            b[j] = block.load(factors + channels + k, j);
            c[j] = block.load(factors + 2 * channels + k, j);
        }
        const auto gate = NormGate<P, V>::make(args + 9, at, k, block);
        for (i64 i = 0; i < count; ++i)
            CL_UNROLL for (int j = 0; j < V; ++j) {
                const i64 place = i * channels + k;
                const vec centred = block.load(x + place, j) - mean[j];
                const vec g = gate.pass(block.load(dy + place, j), centred, place, j, block);
                block.store(dx + place, j, a[j] * g - (b[j] + c[j] * centred));
            }
    });
}

}  // namespace convloom
