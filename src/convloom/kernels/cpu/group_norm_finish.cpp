// Mean and 1/std of each group of channels of an image from the chunks' statistics.
//
// Arguments: partials of norm_statistics, channels, rows of an image, chunks of an image, groups,
// eps, means and scales (out; a row of channels an image: what norm_apply takes), mean and 1/std
// (out; a number a group), then with P::AFFINE the weight. An item is an image. Sums as in
// batch_norm_finish, over the chunks and the channels of a group.
#include "simd.h"

namespace convloom {

template <class P>
void group_norm_finish(const Arg* args, long item, Worker*) {
    const i64 channels = args[1].integer, rows = args[2].integer, chunks = args[3].integer;
    const i64 groups = args[4].integer, width = channels / groups;
    const f32* partials = (const f32*)args[0].address + item * chunks * 2 * channels;
    f32* means = (f32*)args[6].address + item * channels;
    f32* scales = (f32*)args[7].address + item * channels;
    for (i64 group = 0; group < groups; ++group) {
        const i64 first = group * width, last = first + width;
        const f64 number = f64(rows * width);
        f64 mean = 0, squares = 0;
        for (i64 i = 0; i < chunks; ++i) {
            const f64 count = f64(rows * (i + 1) / chunks - rows * i / chunks);
            for (i64 c = first; c < last; ++c) mean += count * partials[2 * i * channels + c];
        }
        mean /= number;
        for (i64 i = 0; i < chunks; ++i) {
            const f64 count = f64(rows * (i + 1) / chunks - rows * i / chunks);
            for (i64 c = first; c < last; ++c) {
                const f64 d = partials[2 * i * channels + c] - mean;
                squares += partials[(2 * i + 1) * channels + c] + count * d * d;
            }
        }
        const f32 invstd = f32(1 / __builtin_sqrt(squares / number + args[5].real));
        ((f32*)args[8].address)[item * groups + group] = f32(mean);
        ((f32*)args[9].address)[item * groups + group] = invstd;
        for (i64 c = first; c < last; ++c) {
            means[c] = f32(mean);
            scales[c] = P::AFFINE ? invstd * ((const f32*)args[10].address)[c] : invstd;
        }
    }
}

}  // namespace convloom
