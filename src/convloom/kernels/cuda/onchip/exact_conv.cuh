// Convolutions in float32: the output of one, and the gradient of its input.
//
// Maps are kept in planes of one channel, rows in multiples of four floats. A thread takes a tile
// of TR x TC pixels by TK filters, sums in registers: a row of inputs and TK weights are read for
// TC * TK products. Neighbouring threads take neighbouring tiles and the same filters, whose
// weights ([channel][row][column][filter]) all read at once. Limit: fused multiply-adds, with one
// read of shared memory for about six of them.
#pragma once

#include "device/activation.cuh"
#include "device/pool.cuh"
#include "onchip/strip.cuh"

// COUNT floats from an address that is a multiple of STEP floats.
template <int COUNT, int STEP>
__device__ __forceinline__ void load_row(f32 (&row)[COUNT], const f32* from) {
    constexpr int WIDE = STEP % 4 == 0 ? 4 : STEP % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDE) {
        if constexpr (WIDE == 4) {
            const float4 four = *reinterpret_cast<const float4*>(from + i);
            const f32 part[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (i + j < COUNT) row[i + j] = part[j];
        } else if constexpr (WIDE == 2) {
            const float2 two = *reinterpret_cast<const float2*>(from + i);
            row[i] = two.x;
            if (i + 1 < COUNT) row[i + 1] = two.y;
        } else {
            row[i] = from[i];
        }
    }
}

// The floats that an address `border` before a multiple of `step` is a multiple of: 1, 2 or 4.
__host__ __device__ constexpr int aligned_to(int step, int border) {
    return step % 4 == 0 && border % 4 == 0 ? 4 : step % 2 == 0 && border % 2 == 0 ? 2 : 1;
}

// sum[row][column][filter] += products over CHANNELS channels of R x S taps; `x` is where the
// tile's first pixel meets the first tap, `w` the first weight of its first filter.
template <int UNROLL, int CHANNELS, int R, int S, int UH, int UW, int PITCH, int PLANE,
          int FILTERS, int ALIGNED, int TR, int TC, int TK>
__device__ __forceinline__ void multiply_exact(f32 (&sum)[TR][TC][TK], const f32* x,
                                               const f32* w) {
    constexpr int WIDTH = (TC - 1) * UW + S;
#pragma unroll UNROLL
    for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
        for (int row = 0; row < (TR - 1) * UH + R; ++row) {
            f32 seen[WIDTH];
            load_row<WIDTH, ALIGNED>(seen, x + row * PITCH);
#pragma unroll
            for (int t = 0; t < TR; ++t) {
                const int r = row - t * UH;
                if (r < 0 || r >= R) continue;
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    f32 weight[TK];
                    load_row<TK, TK>(weight, w + (r * S + s) * FILTERS);
#pragma unroll
                    for (int q = 0; q < TC; ++q)
#pragma unroll
                        for (int k = 0; k < TK; ++k)
                            sum[t][q][k] = fmaf(seen[q * UW + s], weight[k], sum[t][q][k]);
                }
            }
        }
        x += PLANE;
        w += R * S * FILTERS;
    }
}

// What a convolution hands on, element by element: Z begins there, ZPLANE, ZPITCH and ZCOL lie
// between channels, rows and columns.
template <class P, int I>
struct ExactConv {
    using Conv = ConvStage<P, I>;
    static constexpr int ZCOL = int(P::CONV_ZCOL[I]), WINDOWS = Conv::YH * Conv::YW;
    static constexpr int FILTERS = (Conv::K + 3) / 4 * 4, CHANNELS = (Conv::C + 3) / 4 * 4;

    __device__ __forceinline__ static f32& z(Bytes* map, int k, int y, int x) {
        return (&at<f32>(map + Conv::Z))[k * Conv::ZPLANE + y * Conv::ZPITCH + x * ZCOL];
    }
    __device__ __forceinline__ static u8& code(Bytes* map, int k, int y, int x) {
        return map[Conv::CODE + k * WINDOWS + y * Conv::YW + x];
    }
    __device__ __forceinline__ static f32& dy(Bytes* map, int k, int row, int col) {
        return (&at<f32>(map + Conv::DY))[k * Conv::DYPLANE + row * Conv::UH * Conv::DYPITCH +
                                          col * Conv::UW];
    }

    // The gradient of element (k, y, x) of what is handed on becomes that of the products.
    __device__ __forceinline__ static void pass(Bytes* map, int k, int y, int x, f32 gradient) {
        if constexpr (Conv::AVERAGE)
            gradient *= 0.25f;
        else if constexpr (Conv::ACT != NONE)
            gradient = passed<Conv>(gradient, z(map, k, y, x));
        if constexpr (!Conv::POOL) {
            dy(map, k, y, x) = gradient;
        } else {
            const int winner = code(map, k, y, x);
#pragma unroll
            for (int cell = 0; cell < 4; ++cell)
                dy(map, k, 2 * y + cell / 2, 2 * x + cell % 2) =
                    (Conv::AVERAGE ? (winner >> cell & 1) != 0 : cell == winner) ? gradient : 0.0f;
        }
    }
};

template <class P, int I>
struct ExactForward {
    using Conv = ConvStage<P, I>;
    using Exact = ExactConv<P, I>;
    static constexpr int TR = int(P::CONV_TR[I]), TC = int(P::CONV_TC[I]), TK = int(P::CONV_TK[I]);
    using Own = Strip<P, I>;
    static constexpr int ROWS = Conv::POOL ? 2 * Own::MADE : Own::MADE;
    static constexpr int COLS = Conv::POOL ? 2 * Conv::YW : Conv::OW;
    static constexpr int DOWN = (ROWS + TR - 1) / TR, ACROSS = (COLS + TC - 1) / TC;
    static constexpr int TILES = DOWN * ACROSS, ITEMS = TILES * ((Conv::K + TK - 1) / TK);

    __device__ static void run(Bytes* shared, const f32* bias, int buffer) {
        const Rows rows = Own::made(Own::rank());
        for (int i = threadIdx.x; i < ITEMS * int(P::IMAGES); i += int(P::THREADS)) {
            Bytes* map = region<P>(shared, i / ITEMS);
            const int tile = i % ITEMS % TILES, k = i % ITEMS / TILES * TK;
            const int p = (Conv::POOL ? 2 : 1) * rows.begin + tile / ACROSS * TR;
            const int q = tile % ACROSS * TC;
            f32 sum[TR][TC][TK];
#pragma unroll
            for (int e = 0; e < TK; ++e) {
                f32 start = 0.0f;
                if constexpr (Conv::BIAS) start = k + e < Conv::K ? bias[k + e] : 0.0f;
#pragma unroll
                for (int t = 0; t < TR * TC; ++t) sum[t / TC][t % TC][e] = start;
            }
            const f32* x = &at<f32>(input_of<P, I>(map, buffer)) +
                           (p * Conv::UH - Conv::PADH) * Conv::XPITCH + q * Conv::UW - Conv::PADW;
            multiply_exact<int(P::UNROLL), Conv::C, Conv::R, Conv::S, Conv::UH, Conv::UW, Conv::XPITCH,
                           Conv::XPLANE, Exact::FILTERS,
                           aligned_to(TC * Conv::UW, Conv::PADW)>(
                sum, x, &at<f32>(shared + Conv::FRAGMENTS) + k);
#pragma unroll
            for (int e = 0; e < TK; ++e)
                if (k + e < Conv::K) store(sum, e, map, k + e, p, q, rows.end);
        }
    }

    __device__ __forceinline__ static void store(const f32 (&sum)[TR][TC][TK], int e, Bytes* map,
                                                 int k, int p, int q, int end) {
        if constexpr (Conv::POOL) {
            static_assert(TR == 2 && TC % 2 == 0);
#pragma unroll
            for (int w = 0; w < TC / 2; ++w) {
                const int y = p / 2, x = q / 2 + w;
                if (x >= Conv::YW || y >= end) continue;
                f32 best = activated<Conv>(sum[0][2 * w][e]);
                int winner = Conv::AVERAGE ? passes(sum[0][2 * w][e]) : 0;
#pragma unroll
                for (int cell = 1; cell < 4; ++cell) {
                    const f32 raw = sum[cell / 2][2 * w + cell % 2][e];
                    const f32 value = activated<Conv>(raw);
                    if constexpr (Conv::AVERAGE) {
                        best += value;
                        winner |= passes(raw) << cell;
                    } else if (replaces(value, best)) {
                        best = value, winner = cell;
                    }
                }
                if constexpr (Conv::AVERAGE) best *= 0.25f;
                Exact::z(map, k, y, x) = best;
                if constexpr (P::MODE == 2) Exact::code(map, k, y, x) = u8(winner);
            }
        } else {
#pragma unroll
            for (int t = 0; t < TR * TC; ++t) {
                const int y = p + t / TC, x = q + t % TC;
                if (y < end && x < Conv::OW)
                    Exact::z(map, k, y, x) = activated<Conv>(sum[t / TC][t % TC][e]);
            }
        }
    }
    __device__ __forceinline__ static int passes(f32 x) { return Conv::RELU && x <= 0.0f ? 0 : 1; }
};

// A convolution of the output's gradient with the filters turned about, [filter][row][column]
// [channel]; the gradient lies on the input's grid, zeros between and around.
template <class P, int I>
struct ExactDgrad {
    using Conv = ConvStage<P, I>;
    static constexpr int TR = int(P::CONV_DTR[I]), TC = int(P::CONV_DTC[I]);
    static constexpr int TK = int(P::CONV_DTK[I]);
    using Own = Strip<P, I - 1>;
    static constexpr int DOWN = (Own::HANDED_ON + TR - 1) / TR, ACROSS = (Conv::W + TC - 1) / TC;
    static constexpr int TILES = DOWN * ACROSS, ITEMS = TILES * ((Conv::C + TK - 1) / TK);

    __device__ static void run(Bytes* shared) {
        const Rows rows = Own::handed_on(Own::rank());
        for (int i = threadIdx.x; i < ITEMS * int(P::IMAGES); i += int(P::THREADS)) {
            Bytes* map = region<P>(shared, i / ITEMS);
            const int tile = i % ITEMS % TILES, c = i % ITEMS / TILES * TK;
            const int row = rows.begin + tile / ACROSS * TR, col = tile % ACROSS * TC;
            f32 sum[TR][TC][TK];
#pragma unroll
            for (int t = 0; t < TR * TC * TK; ++t) sum[t / TK / TC][t / TK % TC][t % TK] = 0.0f;
            const f32* dy = &at<f32>(map + Conv::DY) +
                            (row - (Conv::R - 1 - Conv::PADH)) * Conv::DYPITCH + col -
                            (Conv::S - 1 - Conv::PADW);
            multiply_exact<int(P::UNROLL), Conv::K, Conv::R, Conv::S, 1, 1, Conv::DYPITCH, Conv::DYPLANE,
                           ExactConv<P, I>::CHANNELS, aligned_to(TC, Conv::S - 1 - Conv::PADW)>(
                sum, dy, &at<f32>(shared + Conv::TRANSPOSED) + c);
#pragma unroll
            for (int t = 0; t < TR * TC * TK; ++t) {
                const int y = row + t / TK / TC, x = col + t / TK % TC;
                if (y < rows.end && x < Conv::W && c + t % TK < Conv::C)
                    ExactConv<P, I - 1>::pass(map, c + t % TK, y, x,
                                              sum[t / TK / TC][t / TK % TC][t % TK]);
            }
        }
    }
};

// Weights as these read them, packed (onchip/weights.cuh).
template <class P, int I>
struct ExactWeights {
    using Conv = ConvStage<P, I>;
    using Exact = ExactConv<P, I>;
    static constexpr int R = Conv::R, S = Conv::S;
    static constexpr int FORWARD = Conv::C * R * S * Exact::FILTERS;
    static constexpr int BACKWARD = I > 0 && P::MODE == 2 ? Conv::K * R * S * Exact::CHANNELS : 0;
    static constexpr int ITEMS = FORWARD + BACKWARD;

    __device__ __forceinline__ static void pack(Bytes* packed, const f32* w, int i) {
        if (i < FORWARD) {
            const int k = i % Exact::FILTERS, tap = i / Exact::FILTERS;
            (&at<f32>(packed + Conv::FRAGMENTS))[i] =
                weight(w, k, tap / (R * S), tap / S % R, tap % S);
        } else {
            i -= FORWARD;
            const int c = i % Exact::CHANNELS, tap = i / Exact::CHANNELS;
            (&at<f32>(packed + Conv::TRANSPOSED))[i] =
                weight(w, tap / (R * S), c, R - 1 - tap / S % R, S - 1 - tap % S);
        }
    }
    __device__ __forceinline__ static f32 weight(const f32* w, int k, int c, int r, int s) {
        if (k >= Conv::K || c >= Conv::C) return 0.0f;
        return w[Conv::ROW ? ((k * Conv::C + c) * R + r) * S + s
                           : ((k * R + r) * S + s) * Conv::C + c];
    }
    __device__ __forceinline__ static void renew(Bytes* packed, int k, int c, int r, int s,
                                                 f32 value) {
        (&at<f32>(packed + Conv::FRAGMENTS))[((c * R + r) * S + s) * Exact::FILTERS + k] = value;
        if constexpr (I > 0)
            (&at<f32>(packed + Conv::TRANSPOSED))[((k * R + R - 1 - r) * S + S - 1 - s) *
                                                      Exact::CHANNELS +
                                                  c] = value;
    }
};
