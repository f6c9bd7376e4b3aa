// y = (x - mean) * scale [+ bias] [+ z], then the activation P::ACT, by channel.
//
// Arguments: x, mean, scale, y, channels, rows of an image, chunks of an image, step (what mean and
// scale advance from image to image: 0 or channels), then with P::AFFINE the bias, then with P::ADD
// the tensor z. An item is a chunk of rows. Limit: bytes.
#include "activation.h"
#include "rows.h"

namespace convloom {

template <class P>
void norm_apply(const Arg* args, long item, Worker*) {
    const i64 channels = args[4].integer, step = args[7].integer;
    const Rows rows = chunk_of_rows(item, args[5].integer, args[6].integer);
    const i64 count = rows.last - rows.first, at = rows.first * channels;
    const f32* x = (const f32*)args[0].address + at;
    const f32* means = (const f32*)args[1].address + rows.image * step;
    const f32* scales = (const f32*)args[2].address + rows.image * step;
    f32* y = (f32*)args[3].address + at;
    const f32* biases = P::AFFINE ? (const f32*)args[8].address : nullptr;
    const f32* z = P::ADD ? (const f32*)args[8 + P::AFFINE].address + at : nullptr;
    channel_blocks<P>(channels, [&](i64 k, auto block) __attribute__((always_inline)) {
        constexpr int V = decltype(block)::VECTORS;
        vec mean[V], scale[V], bias[V];
        CL_UNROLL for (int j = 0; j < V; ++j) {
            mean[j] = block.load(means + k, j);
            scale[j] = block.load(scales + k, j);
            bias[j] = P::AFFINE ? block.load(biases + k, j) : zero();
        }
        for (i64 i = 0; i < count; ++i)
            CL_UNROLL for (int j = 0; j < V; ++j) {
                vec v = block.load(x + i * channels + k, j) - mean[j];
                v = fma(v, scale[j], bias[j]);
                if constexpr (P::ADD != 0) v += block.load(z + i * channels + k, j);
                block.store(y + i * channels + k, j, activated<P>(v));
            }
    });
}

}  // namespace convloom
