// Convolutions of many small groups, channels last: depthwise ones (a channel and a filter a group),
// and groups whose channels and filters go four at a time. A tile of filters would be mostly empty,
// so here a lane stands on four neighbouring channels of its own side: LANES of the sums, DEPTH of
// what is summed. Constants are those of device/conv.cuh, and ACROSS lanes side by side, TQ columns.
#pragma once

#include "device/conv.cuh"

constexpr int GROUP_THREADS = 256;

__host__ __device__ constexpr i32 floor_div(i32 a, i32 b) {
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

// One side of the convolution seen from the other: the forward pass, or BACK to the input.
template <class P, bool BACK>
struct Groups {
    static constexpr i32 FILTERS = i32(P::K / P::G), CHANNELS = i32(P::C);
    static constexpr i32 OUT = BACK ? CHANNELS : FILTERS, IN = BACK ? FILTERS : CHANNELS;
    static constexpr bool DEPTHWISE = OUT == 1 && IN == 1;
    static_assert(DEPTHWISE || (OUT % 4 == 0 && IN % 4 == 0));
    static constexpr i64 OUT_C = P::G * OUT, IN_C = P::G * IN;
    static constexpr i64 OUT_H = BACK ? P::H : P::OH, OUT_W = BACK ? P::W : P::OW;
    static constexpr i64 IN_H = BACK ? P::OH : P::H, IN_W = BACK ? P::OW : P::W;
    static constexpr int TAPS = int(P::R * P::S), SUMMED = DEPTHWISE ? 1 : IN;
    static constexpr int ACROSS = int(P::ACROSS), DOWN = GROUP_THREADS / ACROSS, TQ = int(P::TQ);
    static constexpr i64 LANES = ceil_div(OUT_C / 4, ACROSS);  // blocks side by side
    static constexpr i64 TILES = ceil_div(OUT_W, TQ);          // of a row
    static constexpr i64 UNITS = OUT_H * TILES;                // of an image

    // Column j of a tile meets, through tap s, the column of the other side that lies this far
    // behind the one where the tile begins; NONE if there is none.
    static constexpr i32 NONE = 1 << 30;
    static_assert(!BACK || TQ % P::UW == 0);
    __host__ __device__ static constexpr i32 source(i32 j, i32 s) {
        if (!BACK) return j * i32(P::UW) + s * i32(P::DW) - i32(P::PW);
        const i32 at = j + i32(P::PW) - s * i32(P::DW), whole = floor_div(at, i32(P::UW));
        return whole * i32(P::UW) == at ? whole : NONE;
    }
    static constexpr i32 LOW =
        BACK ? floor_div(i32(P::PW - (P::S - 1) * P::DW), i32(P::UW)) : -i32(P::PW);
    static constexpr i32 HIGH = BACK ? floor_div(TQ - 1 + i32(P::PW), i32(P::UW))
                                     : (TQ - 1) * i32(P::UW) + i32((P::S - 1) * P::DW - P::PW);
    // Where the other side's columns of a tile begin, LOW apart.
    __device__ static i32 first_column(i32 tile) {
        return BACK ? tile * (TQ / i32(P::UW)) : tile * TQ * i32(P::UW);
    }
    // The row of the other side that a row meets through tap r; negative if there is none.
    __device__ static i32 source_row(i32 row, i32 r) {
        if (!BACK) return row * i32(P::UH) + r * i32(P::DH) - i32(P::PH);
        const i32 at = row + i32(P::PH) - r * i32(P::DH);
        return at % i32(P::UH) == 0 ? at / i32(P::UH) : -1;
    }

    // The block's filters as [tap][summed][lane] in shared memory, 0 where there is none.
    __device__ static void stage(f32* to, const f32* w) {
        const i64 first = blockIdx.x % LANES * (4 * ACROSS);
        for (int i = threadIdx.x; i < TAPS * SUMMED * 4 * ACROSS; i += GROUP_THREADS) {
            const i64 out = first + i % (4 * ACROSS);
            const i32 rest = i / (4 * ACROSS), j = rest % SUMMED, tap = rest / SUMMED;
            const i64 filter = BACK ? out / OUT * IN + j : out;
            const i64 channel = BACK ? out % OUT : j;
            to[i] = out < OUT_C ? w[(filter * TAPS + tap) * P::C + channel] : 0.0f;
        }
        __syncthreads();
    }

    // sum[j] += the taps of the tile of output row `row` that begins at column tile * TQ.
    __device__ __forceinline__ static void add_taps(f32 (&sum)[TQ][4], const f32* x, i64 image,
                                                    i32 row, i32 tile, i64 out,
                                                    const f32* filters) {
        constexpr int DEPTH = DEPTHWISE ? 1 : 4;
        const i64 channel = DEPTHWISE ? out : out / OUT * IN;
        const i32 first = first_column(tile) + LOW;
#pragma unroll 1  // or all rows' loads would wait in registers
        for (int r = 0; r < P::R; ++r) {
            const i32 from = source_row(row, r);
            const bool there = from >= 0 && from < IN_H;
            if (BACK && !there) continue;
            const f32* line = x + (image * IN_H + from) * (IN_W * IN_C) + channel;
#pragma unroll
            for (int c = 0; c < SUMMED; c += DEPTH) {
                float4 w[P::S][DEPTH];
#pragma unroll
                for (int s = 0; s < P::S; ++s)
#pragma unroll
                    for (int d = 0; d < DEPTH; ++d)
                        w[s][d] = *reinterpret_cast<const float4*>(
                            filters + ((r * P::S + s) * SUMMED + c + d) * (4 * ACROSS));
                if (!BACK && !there) {
                    add_row(sum, w, [](int) { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); });
                    continue;
                }
                add_row(sum, w, [&](int l) {
                    const i32 col = first + l;
                    if (col < 0 || col >= IN_W) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    return *reinterpret_cast<const float4*>(line + col * IN_C + c);
                });
            }
        }
    }

    // One row of taps: column l of the tile's columns on the other side is value(l).
    template <int DEPTH, class Value>
    __device__ __forceinline__ static void add_row(f32 (&sum)[TQ][4],
                                                   const float4 (&w)[P::S][DEPTH],
                                                   const Value& value) {
#pragma unroll
        for (int l = 0; l <= HIGH - LOW; ++l) {
            const float4 x = value(l);
#pragma unroll
            for (int j = 0; j < TQ; ++j)
#pragma unroll
                for (int s = 0; s < P::S; ++s)
                    if (source(j, s) == LOW + l) add(sum[j], x, w[s]);
        }
    }

    // Depthwise: channel by channel. Groups: four channels meet four filters.
    __device__ __forceinline__ static void add(f32 (&sum)[4], const float4& x,
                                               const float4 (&w)[1]) {
        sum[0] = fmaf(x.x, w[0].x, sum[0]), sum[1] = fmaf(x.y, w[0].y, sum[1]);
        sum[2] = fmaf(x.z, w[0].z, sum[2]), sum[3] = fmaf(x.w, w[0].w, sum[3]);
    }
    __device__ __forceinline__ static void add(f32 (&sum)[4], const float4& x,
                                               const float4 (&w)[4]) {
        const f32 value[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int d = 0; d < 4; ++d) {
            sum[0] = fmaf(value[d], w[d].x, sum[0]), sum[1] = fmaf(value[d], w[d].y, sum[1]);
            sum[2] = fmaf(value[d], w[d].z, sum[2]), sum[3] = fmaf(value[d], w[d].w, sum[3]);
        }
    }
};
