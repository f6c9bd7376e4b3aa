// Mean and 1/std of every channel from the chunks' statistics, and the running values after it.
//
// Arguments: partials of norm_statistics, channels, rows, chunks, eps, scale (out; what differences
// from the mean are multiplied by), mean (out), 1/std (out), then with P::AFFINE the weight, then
// with P::TRACK the running mean and variance before and after, momentum, and with P::CUMULATIVE the
// number of batches with this one, whose reciprocal stands for momentum. An item is 16 channels.
// Partials are added in order, in float64: mean = sum n_i mean_i / n and the squared differences
// are sum (squares_i + n_i (mean_i - mean)^2) (Chan, Golub and LeVeque, 1979).
#include "simd.h"

namespace convloom {

template <class P>
void batch_norm_finish(const Arg* args, long item, Worker*) {
    const f32* partials = (const f32*)args[0].address;
    const i64 channels = args[1].integer, rows = args[2].integer, chunks = args[3].integer;
    const Arg* rest = args + 8 + P::AFFINE;
    const f64 number = f64(rows);
    const i64 last = min((item + 1) * 16, channels);
    for (i64 c = item * 16; c < last; ++c) {
        const auto of_chunk = [&](i64 i) { return f64(rows * (i + 1) / chunks - rows * i / chunks); };
        f64 mean = 0, squares = 0;
        for (i64 i = 0; i < chunks; ++i) mean += of_chunk(i) * partials[2 * i * channels + c];
        mean /= number;
        for (i64 i = 0; i < chunks; ++i) {
            const f64 d = partials[2 * i * channels + c] - mean;
            squares += partials[(2 * i + 1) * channels + c] + of_chunk(i) * d * d;
        }
        const f32 invstd = f32(1 / __builtin_sqrt(squares / number + args[4].real));
        f32 scale = invstd;
        if constexpr (P::AFFINE != 0) scale *= ((const f32*)args[8].address)[c];
        ((f32*)args[5].address)[c] = scale;
        ((f32*)args[6].address)[c] = f32(mean);
        ((f32*)args[7].address)[c] = invstd;
        if constexpr (P::TRACK != 0) {
            f64 share = rest[4].real;
            if constexpr (P::CUMULATIVE != 0) share = 1 / f64(*(const i64*)rest[5].address);
            const auto update = [&](int from, f64 value) {
                const f32 old = ((const f32*)rest[from].address)[c];
                const f64 now = (1 - share) * old + share * value;
                ((f32*)rest[from + 2].address)[c] = rows ? f32(now) : old;
            };
            update(0, mean);
            update(1, squares / (number - 1));
        }
    }
}

}  // namespace convloom
