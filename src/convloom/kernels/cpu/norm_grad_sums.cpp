// Sums of g and of g (x - mean), of every channel over a chunk of rows, where g is what passes the
// activation P::ACT of dy.
//
// Arguments: dy, x, mean, partials (item, {g, g (x - mean)}, channel), channels, rows of an image,
// chunks of an image, step (what mean advances from image to image), with P::KEEP the tensor g
// (out), then what norm_gate.h takes. An item is a chunk of rows.
// Limit: bytes.
#include "norm_gate.h"

namespace convloom {

template <class P>
void norm_grad_sums(const Arg* args, long item, Worker*) {
    const i64 channels = args[4].integer;
    const Rows rows = chunk_of_rows(item, args[5].integer, args[6].integer);
    const i64 count = rows.last - rows.first, at = rows.first * channels;
    const f32* dy = (const f32*)args[0].address + at;
    const f32* x = (const f32*)args[1].address + at;
    const f32* means = (const f32*)args[2].address + rows.image * args[7].integer;
    f32* sums = (f32*)args[3].address + item * 2 * channels;
    f32* kept = P::KEEP ? (f32*)args[8].address + at : nullptr;
    channel_blocks<P>(channels, [&](i64 k, auto block) __attribute__((always_inline)) {
        constexpr int V = decltype(block)::VECTORS;
        vec mean[V], plain[V], moment[V];
        CL_UNROLL for (int j = 0; j < V; ++j) {
            mean[j] = block.load(means + k, j);
            plain[j] = moment[j] = zero();
        }
        const auto gate = NormGate<P, V>::make(args + 8 + P::KEEP, at, k, block);
        for (i64 i = 0; i < count; ++i)
            CL_UNROLL for (int j = 0; j < V; ++j) {
                const i64 place = i * channels + k;
                const vec centred = block.load(x + place, j) - mean[j];
                const vec g = gate.pass(block.load(dy + place, j), centred, place, j, block);
                if constexpr (P::KEEP != 0) block.store(kept + place, j, g);
                plain[j] += g;
                moment[j] = fma(g, centred, moment[j]);
            }
        CL_UNROLL for (int j = 0; j < V; ++j) {
            block.store(sums + k, j, plain[j]);
            block.store(sums + channels + k, j, moment[j]);
        }
    });
}

}  // namespace convloom
