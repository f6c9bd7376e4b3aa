// A convolution of the images that a block carries, with bias, rectifier and 2x2 maximum pool.
//
// An implicit matrix product: pixels by filters, products over taps and channels. A warp takes MT
// tiles of 16 pixels by NT of 8 filters at a time. If a pool follows, a tile is four windows; rows
// g and g + 8 of it are the upper and lower cell of one column, and lanes that differ in bit 2 hold
// the two columns, so that a window's winner is found by two shuffles a pair of tiles. The winner
// of a window that holds NaN may be any cell: all gradients are NaN then.
// Limit: reads of shared memory, MT + NT / 2 of 512 bytes for MT * NT products of tiles.
#pragma once

#include "device/activation.cuh"
#include "onchip/multiply.cuh"
#include "onchip/strip.cuh"
#include "onchip/weights.cuh"

template <class P, int I>
struct ConvForward {
    using Conv = ConvStage<P, I>;
    using F = Format<P>;
    using Pair = typename F::Pair;
    static constexpr int MT = Conv::MT, NT = Conv::NT;
    using Own = Strip<P, I>;
    static constexpr int WINDOWS = Conv::YH * Conv::YW;
    // Those of the block: windows, or pixels where no pool follows.
    static constexpr int OWN = Own::MADE * Conv::YW, CELLS = Conv::POOL ? 4 * OWN : OWN;
    static constexpr int M_TILES = (CELLS + 15) / 16, M_GROUPS = (M_TILES + MT - 1) / MT;
    static constexpr int UNITS = M_GROUPS * Conv::N_GROUPS;

    // The distance in pixels of the input map from pixel (0, 0) to where row `row` of a tile begins
    // its taps.
    __device__ __forceinline__ static int begin(int tile, int row) {
        int p, q;
        if constexpr (Conv::POOL) {
            const int window = there(tile * 4 + row % 8 / 2);
            p = window / Conv::YW * 2 + row / 8;
            q = window % Conv::YW * 2 + row % 2;
        } else {
            const int pixel = there(tile * 16 + row);
            p = pixel / Conv::OW;
            q = pixel % Conv::OW;
        }
        return (p * Conv::UH - Conv::PADH) * Conv::XPITCH + q * Conv::UW - Conv::PADW;
    }

    // The number in its map of the i-th window (pixel) of the block's; behind the last the first.
    __device__ __forceinline__ static int there(int i) {
        const int place = first_own() + i;
        return place < end_own() ? place : first_own();
    }
    __device__ __forceinline__ static int first_own() {
        return Own::made(Own::rank()).begin * Conv::YW;
    }
    __device__ __forceinline__ static int end_own() { return Own::made(Own::rank()).end * Conv::YW; }

    __device__ static void run(Bytes* shared, const f32* bias, int buffer) {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        for (int u = warp; u < UNITS * int(P::IMAGES); u += int(P::THREADS) / 32) {
            Bytes* map = region<P>(shared, u / UNITS);
            const Bytes* x = input_of<P, I>(map, buffer);
            const int first = u % UNITS / Conv::N_GROUPS * MT, n_tile = u % Conv::N_GROUPS * NT;
            Tiles<MT, NT> acc;
            start(acc, bias, n_tile, lane);
            const Bytes* fragments = shared + Conv::FRAGMENTS + 256 * n_tile + 8 * lane;
            if constexpr (Conv::GATHER) {
                gather(acc, x, first, fragments, lane);
            } else {
                const Bytes* place[MT];
#pragma unroll
                for (int m = 0; m < MT; ++m)
                    place[m] = x + 16 * begin(first + m, lane % 16);
                multiply_taps<F, Conv::R, Conv::S, Conv::CP, Conv::XPLANE, 16 * Conv::XPITCH, 16,
                              ConvWeights<P, I>::TILES>(acc, place, fragments);
            }
            if constexpr (Conv::AVERAGE) {
                store_averaged(acc, map, first, n_tile, lane);
            } else if constexpr (Conv::POOL) {
                store_pooled(acc, map, first, n_tile, lane);
            } else {
#pragma unroll
                for (int m = 0; m < MT; ++m) store(acc[m], map, first + m, n_tile, lane);
            }
        }
    }

    // Sums begin with the bias.
    __device__ __forceinline__ static void start(Tiles<MT, NT>& acc, const f32* bias, int n_tile,
                                                 int lane) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            f32 two[2] = {0.0f, 0.0f};
            const int k = (n_tile + n) * 8 + lane % 4 * 2;
            if constexpr (Conv::BIAS) {
                if (k < Conv::K) two[0] = bias[k];
                if (k + 1 < Conv::K) two[1] = bias[k + 1];
            }
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[m][n][i] = two[i % 2];
        }
    }

    // Products over a map in planes of one channel: lanes pick theirs one by one.
    __device__ __forceinline__ static void gather(Tiles<MT, NT>& acc, const Bytes* map, int first,
                                                  const Bytes* fragments, int lane) {
        using Weights = ConvWeights<P, I>;
        using Number = typename F::Number;
        const Number* pixel[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                pixel[m][half] = &at<Number>(map) + begin(first + m, lane / 4 + 8 * half);
#pragma unroll
        for (int step = 0; step < Weights::STEPS; ++step) {
            int offset[F::DEPTH / 4];
#pragma unroll
            for (int i = 0; i < F::DEPTH / 4; ++i)
                offset[i] = product(step * F::DEPTH + F::product(lane, i));
            u32 b[NT][2];
            load_fragments(b, fragments + 256 * Weights::TILES * step);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                u32 a[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) a[i] = F::gathered(pixel[m][i % 2], offset, i / 2);
#pragma unroll
                for (int n = 0; n < NT; ++n) F::multiply(acc[m][n], a, b[n]);
            }
        }
    }
    // How far product i lies from the first, in elements; those that are padding lie on it.
    __device__ __forceinline__ static int product(int i) {
        constexpr int RS = Conv::R * Conv::S;
        if (i >= Conv::C * RS) return 0;
        return i / RS * Conv::XPLANE + i % RS / Conv::S * Conv::XPITCH + i % Conv::S;
    }

    __device__ __forceinline__ static void store(const f32 (&acc)[NT][4], Bytes* map, int tile,
                                                 int n_tile, int lane) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int pixel = first_own() + tile * 16 + lane / 4 + 8 * half;
            if (pixel >= end_own()) continue;
            const int z = pixel / Conv::OW * Conv::ZPITCH + pixel % Conv::OW;
#pragma unroll
            for (int n = 0; n < NT; ++n)
                store_pair(map, n_tile + n, z, lane, activated<Conv>(acc[n][2 * half]),
                           activated<Conv>(acc[n][2 * half + 1]));
        }
    }

    // What a lane has of a tile's pixel, two channels; whether they are there.
    __device__ __forceinline__ static bool store_pair(Bytes* map, int tile, int z, int lane,
                                                      f32 even, f32 odd) {
        const int plane = tile * Conv::PLANES + F::plane(lane);
        if (plane >= Conv::KP) return false;
        at<Pair>(map + Conv::Z + plane * Conv::ZPLANE + 16 * z + F::byte_in_pixel(lane)) =
            F::pair(even, odd);
        return true;
    }
    __device__ __forceinline__ static void store_codes(Bytes* map, int tile, int window, int lane,
                                                       const u32 (&code)[2]) {
        if constexpr (P::MODE == 2)
            at<u16>(map + Conv::CODE + 8 * (tile * WINDOWS + window) + 2 * (lane % 4)) =
                u16(code[0] | code[1] << 8);
    }

    // Lanes hold columns of windows: first the greater of the two rows, then that of two lanes.
    __device__ __forceinline__ static void store_pooled(const Tiles<MT, NT>& acc, Bytes* map,
                                                        int first, int n_tile, int lane) {
        static_assert(MT * NT * 2 <= 32);
        const bool right = (lane >> 2 & 1) != 0;  // the lane holds the windows' right columns
        f32 top[MT][NT][2];
        u32 lower = 0;  // which columns the lower row won
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const f32 up = acc[m][n][e], down = acc[m][n][2 + e];
                    top[m][n][e] = max_nan(up, down);
                    lower |= (down > up ? 1u : 0u) << ((m * NT + n) * 2 + e);
                }
        const u32 others = __shfl_xor_sync(0xffffffffu, lower, 4);
        const u32 left_lower = right ? others : lower, right_lower = right ? lower : others;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const int window = first_own() + (first + m) * 4 + lane / 8;
            const int z = window / Conv::YW * Conv::ZPITCH + window % Conv::YW;
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                // The lanes with left columns end up with tile n, the others with tile n + 1.
                const int other = n + 1 < NT ? n + 1 : n;
                f32 best[2];
                u32 code[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const f32 own = right ? top[m][other][e] : top[m][n][e];
                    const f32 got = __shfl_xor_sync(
                        0xffffffffu, right ? top[m][n][e] : top[m][other][e], 4);
                    const f32 x0 = right ? got : own, x1 = right ? own : got;
                    const int bit = (m * NT + n) * 2 + e, step = right ? 2 * (other - n) : 0;
                    const u32 k0 = (left_lower >> (bit + step) & 1) != 0 ? 4 : 1;
                    const u32 k1 = (right_lower >> (bit + step) & 1) != 0 ? 8 : 2;
                    // Of equals the first wins, row by row.
                    const u32 winner = x1 > x0 ? k1 : x0 > x1 || k0 < k1 ? k0 : k1;
                    const f32 most = max_nan(x0, x1);
                    code[e] = Conv::RELU && most <= 0.0f ? 0 : winner;
                    best[e] = activated<Conv>(most);
                }
                const int tile = n_tile + (right ? n + 1 : n);
                if ((right && n + 1 >= NT) || window >= end_own()) continue;
                if (store_pair(map, tile, z, lane, best[0], best[1]))
                    store_codes(map, tile, window, lane, code);
            }
        }
    }

    // As store_pooled, for averages: sums of columns, and which cells passed the rectifier.
    __device__ __forceinline__ static void store_averaged(const Tiles<MT, NT>& acc, Bytes* map,
                                                          int first, int n_tile, int lane) {
        const bool right = (lane >> 2 & 1) != 0;
        u32 upper = 0, lower = 0;  // a bit for each column
#pragma unroll
        for (int i = 0; i < MT * NT * 2; ++i) {
            const f32(&four)[4] = acc[i / 2 / NT][i / 2 % NT];
            upper |= (Conv::RELU && four[i % 2] <= 0.0f ? 0u : 1u) << i;
            lower |= (Conv::RELU && four[2 + i % 2] <= 0.0f ? 0u : 1u) << i;
        }
        const u32 others = __shfl_xor_sync(0xffffffffu, upper, 4);
        const u32 others_lower = __shfl_xor_sync(0xffffffffu, lower, 4);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const int window = first_own() + (first + m) * 4 + lane / 8;
            const int z = window / Conv::YW * Conv::ZPITCH + window % Conv::YW;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                f32 mean[2];
                u32 code[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const f32 own =
                        activated<Conv>(acc[m][n][e]) + activated<Conv>(acc[m][n][2 + e]);
                    mean[e] = 0.25f * (own + __shfl_xor_sync(0xffffffffu, own, 4));
                    const int bit = (m * NT + n) * 2 + e;
                    code[e] = (upper >> bit & 1) | (others >> bit & 1) << 1 |
                              (lower >> bit & 1) << 2 | (others_lower >> bit & 1) << 3;
                }
                if (right || window >= end_own()) continue;
                if (store_pair(map, n_tile + n, z, lane, mean[0], mean[1]))
                    store_codes(map, n_tile + n, window, lane, code);
            }
        }
    }
};
