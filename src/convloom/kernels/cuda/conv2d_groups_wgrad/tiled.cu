// Gradients of filters of many small groups (device/conv_groups.cuh) and, with BIAS, of the bias
//
// A lane stands on four filters (and in groups on four of their channels) and keeps the sums of RT
// rows of taps in registers, while the block walks the tiles of a chunk of the batch, TQ outputs of
// a row each. Lanes on the same filters are added by shuffles, warps through shared memory, in
// order. Chunk c writes at dw + c * stride and db + c * stride, in KRSC order; sum_partials adds
// several up. Limit: memory; about five loads from the first-level cache an output.
#include "device/conv_groups.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void __launch_bounds__(GROUP_THREADS)
    conv2d_groups_wgrad_tiled(const f32* x, const f32* dy, f32* dw, f32* db, i64 n, i64 chunk,
                              i64 stride) {
    using G = Groups<P, false>;
    constexpr int RT = int(P::RT), S = int(P::S), TQ = G::TQ, ACROSS = G::ACROSS, WARPS = 8;
    constexpr int DEPTH = G::DEPTHWISE ? 1 : 4, SUMS = RT * S * DEPTH * 4 + 4;
    constexpr i32 FOURS = G::DEPTHWISE ? 1 : G::CHANNELS / 4;  // of channels, to a filter
    constexpr i64 LANES = ceil_div(P::K / 4 * FOURS, ACROSS), ROWS = P::R / RT;
    __shared__ f32 part[WARPS / 2][SUMS][ACROSS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 number = blockIdx.x % LANES * ACROSS + threadIdx.x % ACROSS;
    const i64 k = number / FOURS * 4, c = G::DEPTHWISE ? 0 : number % FOURS * 4;
    const i64 channel = G::DEPTHWISE ? k : k / G::FILTERS * G::CHANNELS + c;
    const i32 first_tap = i32(blockIdx.x / LANES % ROWS) * RT;
    const i64 part_of = blockIdx.x / (LANES * ROWS);
    const i64 last = k < P::K ? least((part_of + 1) * chunk, n * G::UNITS) : 0;
    f32 sum[SUMS] = {};
    for (i64 unit = part_of * chunk + threadIdx.x / ACROSS; unit < last; unit += G::DOWN) {
        const i64 image = unit / G::UNITS;
        const u32 rest = u32(unit % G::UNITS);
        const i32 row = i32(rest / u32(G::TILES)), tile = i32(rest % u32(G::TILES));
        const f32* from = dy + ((image * P::OH + row) * P::OW + tile * TQ) * P::K + k;
        f32 gradient[TQ][4];
#pragma unroll
        for (int j = 0; j < TQ; ++j) {
            float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (tile * TQ + j < P::OW) value = *reinterpret_cast<const float4*>(from + j * P::K);
            gradient[j][0] = value.x, gradient[j][1] = value.y;
            gradient[j][2] = value.z, gradient[j][3] = value.w;
#pragma unroll
            for (int v = 0; v < 4; ++v) sum[SUMS - 4 + v] += gradient[j][v];
        }
        const i32 first = G::first_column(tile) + G::LOW;
#pragma unroll
        for (int r = 0; r < RT; ++r) {
            const i32 line = G::source_row(row, first_tap + r);
            const bool there = line >= 0 && line < P::H;
            const f32* image_row = x + (image * P::H + (there ? line : 0)) * (P::W * G::IN_C) + channel;
#pragma unroll
            for (int l = 0; l <= G::HIGH - G::LOW; ++l) {
                const i32 col = first + l;
                float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (there && col >= 0 && col < P::W)
                    value = *reinterpret_cast<const float4*>(image_row + col * G::IN_C);
                const f32 four[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
                for (int j = 0; j < TQ; ++j)
#pragma unroll
                    for (int s = 0; s < S; ++s) {
                        // An output that is not there has no part in a sum, even with Inf.
                        if (G::source(j, s) != G::LOW + l || tile * TQ + j >= P::OW) continue;
                        f32* to = sum + (r * S + s) * (4 * DEPTH);
#pragma unroll
                        for (int v = 0; v < 4; ++v)
#pragma unroll
                            for (int d = 0; d < DEPTH; ++d)
                                to[v * DEPTH + d] =
                                    fmaf(four[G::DEPTHWISE ? v : d], gradient[j][v],
                                         to[v * DEPTH + d]);
                    }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] = lanes_sum<ACROSS, 16>(sum[i]);
    for (int half = WARPS / 2; half > 0; half /= 2) {
        if (warp >= half && warp < 2 * half && lane < ACROSS) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) part[warp - half][i][lane] = sum[i];
        }
        __syncthreads();
        if (warp < half && lane < ACROSS) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] += part[warp][i][lane];
        }
        __syncthreads();
    }
    if (warp != 0 || lane >= ACROSS || k >= P::K) return;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
#pragma unroll
        for (int tap = 0; tap < RT * S; ++tap)
#pragma unroll
            for (int d = 0; d < DEPTH; ++d)
                dw[part_of * stride + ((k + v) * G::TAPS + first_tap * S + tap) * P::C + c + d] =
                    sum[(tap * 4 + v) * DEPTH + d];
        if (P::BIAS != 0 && first_tap == 0 && c == 0)
            db[part_of * stride + k + v] = sum[SUMS - 4 + v];
    }
}
