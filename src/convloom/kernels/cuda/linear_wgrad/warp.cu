// dw[o,i] = sum over n of dy[n,o] * x[n,i], and with BIAS db[o] = sum over n of dy[n,o], for few
// outputs
//
// A thread takes four inputs and all outputs, whose sums it keeps in registers, and walks a chunk
// of the samples: it reads x once, neighbours beside neighbours, and dy from shared memory, where
// the block has put SAMPLES samples of it. Chunk c writes at dw + c * stride and db + c * stride;
// several chunks are added up by sum_partials.
// Against tiled: a tile would be mostly empty.
// Limit: reading x.
#include "device/tile.cuh"

template <class P>
__global__ void __launch_bounds__(128)
    linear_wgrad_warp(const f32* x, const f32* dy, f32* dw, f32* db, i64 n, i64 chunk,
                      i64 stride) {
    constexpr int SAMPLES = 32, OUTPUTS = int(P::O), LINE = int(round_up(OUTPUTS, 4));
    constexpr i64 COLS = ceil_div(P::I / 4, 128);
    static_assert(P::I % 4 == 0);
    __shared__ __align__(16) f32 gradients[SAMPLES][LINE];
    const i64 part = blockIdx.x / COLS, first = part * chunk, last = least(first + chunk, n);
    const i64 i = (blockIdx.x % COLS * 128 + threadIdx.x) * 4;
    const bool busy = i < P::I, adds = P::BIAS != 0 && blockIdx.x % COLS == 0;
    f32 sum[OUTPUTS][4] = {}, bias = 0.0f;
    for (i64 start = first; start < last; start += SAMPLES) {
        const int count = int(least(last - start, SAMPLES));
        __syncthreads();
        for (int j = threadIdx.x; j < SAMPLES * LINE; j += 128) {
            const int sample = j / LINE, o = j % LINE;
            const bool there = sample < count && o < OUTPUTS;
            gradients[sample][o] = there ? dy[(start + sample) * OUTPUTS + o] : 0.0f;
        }
        __syncthreads();
        if (adds && threadIdx.x < OUTPUTS)
            for (int sample = 0; sample < count; ++sample) bias += gradients[sample][threadIdx.x];
        if (!busy) continue;
#pragma unroll 4
        for (int sample = 0; sample < count; ++sample) {
            f32 input[4];
            load_or_zero(input, x, (start + sample) * P::I + i, true);
#pragma unroll
            for (int o = 0; o < LINE; o += 4) {
                f32 gradient[4];
                load_fours(gradient, &gradients[sample][o], 0);
#pragma unroll
                for (int v = 0; v < 4; ++v)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        if (o + v < OUTPUTS)
                            sum[o + v][e] = fmaf(gradient[v], input[e], sum[o + v][e]);
            }
        }
    }
    if (adds && threadIdx.x < OUTPUTS) db[part * stride + threadIdx.x] = bias;
    if (!busy) return;
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o)
        store_fours<true>(dw + part * stride + o * P::I + i, sum[o], 0, 4);
}
