// A convolution of the images that a block carries, with bias, rectifier and 2x2 maximum pool.
//
// An implicit matrix product: pixels by filters, products over taps and channels. A warp takes MT
// tiles of 16 pixels by NT of 8 filters at a time. If a pool follows, two tiles are eight windows:
// rows g and g + 8 of both are the four cells of window g, so that a lane holds windows as a whole.
// One tile has the left column of the first four windows and the right one of the others, the other
// tile the rest: so the eight pixels that ldmatrix reads at once lie in all banks. The winner of a
// window that holds NaN may be any cell: all gradients are NaN then.
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
    static constexpr int OWN = Own::MADE * Conv::YW;
    static constexpr int M_TILES = Conv::POOL ? (OWN + 7) / 8 * 2 : (OWN + 15) / 16;
    static constexpr int M_GROUPS = (M_TILES + MT - 1) / MT;
    static constexpr int UNITS = M_GROUPS * Conv::N_GROUPS;
    // Whether tiles of a unit may hold what is not the block's, or no filters.
    static constexpr bool OVER = P::CLUSTER > 1 || OWN * (Conv::POOL ? 2 : 1) % (16 * MT) != 0;
    static_assert(!Conv::POOL || MT % 2 == 0, "two tiles hold windows");

    // The distance in pixels of the input map from pixel (0, 0) to where row `row` of tile
    // `first + m` begins its taps.
    __device__ __forceinline__ static int begin(int first, int m, int row) {
        constexpr int CELLS = Conv::POOL ? 2 : 1;  // of what is handed on, each way
        constexpr int RIGHT = CELLS * Conv::UW, DOWN = CELLS * Conv::UH * Conv::XPITCH;
        const int tile = Conv::POOL ? (first / 2 + m / 2) * 8 : (first + m) * 16;
        const unsigned i = there(tile + (Conv::POOL ? row % 8 : row));
        const int begin = int(i) * RIGHT + int(i / Conv::YW) * (DOWN - Conv::YW * RIGHT) -
                          Conv::PADH * Conv::XPITCH - Conv::PADW;
        if constexpr (!Conv::POOL) return begin;
        const bool right = m % 2 != swapped(row % 8);
        return begin + (row / 8 * Conv::UH * Conv::XPITCH + (right ? Conv::UW : 0));
    }
    // Whether the first tile of two has the right column of window `window` of its eight.
    __device__ __forceinline__ static bool swapped(int window) { return window >= 4; }

    // The number in its map of the i-th window (pixel) of the block's; behind the last lies the
    // last.
    __device__ __forceinline__ static int there(int i) {
        return least(first_own() + i, end_own() - 1);
    }
    __device__ __forceinline__ static int first_own() {
        return Own::made(Own::rank()).begin * Conv::YW;
    }
    __device__ __forceinline__ static int end_own() { return Own::made(Own::rank()).end * Conv::YW; }

    __device__ static void run(Bytes* shared, const f32* bias, int buffer) {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        for (int u = warp; u < UNITS * int(P::IMAGES); u += int(P::THREADS) / 32) {
            const int image = image_of<P>(u, UNITS), unit = u - image * UNITS;
            Bytes* map = region<P>(shared, image);
            const Bytes* x = input_of<P, I>(map, buffer);
            const int first = unit / Conv::N_GROUPS * MT, n_tile = unit % Conv::N_GROUPS * NT;
            f32 own[NT][2];
            load_bias(own, bias, n_tile, lane);
            Tiles<MT, NT> acc;
            start(acc, own);
            const Bytes* fragments = shared + Conv::FRAGMENTS + fragment_at<NT>(n_tile, lane);
            if constexpr (Conv::GATHER) {
                gather(acc, x, first, fragments, lane);
            } else {
                const Bytes* place[MT];
#pragma unroll
                for (int m = 0; m < MT; ++m)
                    place[m] = x + 16 * begin(first, m, lane % 16);
                multiply_taps<F, Conv::R, Conv::S, Conv::CP, Conv::XPLANE, 16 * Conv::XPITCH, 16,
                              ConvWeights<P, I>::TILES>(acc, place, fragments);
            }
            if constexpr (Conv::AVERAGE) {
                store_averaged(acc, map, first, n_tile, lane);
            } else if constexpr (Conv::POOL) {
                store_pooled(acc, own, map, first, n_tile, lane);
            } else {
#pragma unroll
                for (int m = 0; m < MT; ++m) store(acc[m], map, first + m, n_tile, lane);
            }
        }
    }

    __device__ __forceinline__ static void load_bias(f32 (&own)[NT][2], const f32* bias, int n_tile,
                                                     int lane) {
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = (n_tile + n) * 8 + lane % 4 * 2 + e;
                own[n][e] = 0.0f;
                if constexpr (Conv::BIAS)
                    if (k < Conv::K) own[n][e] = bias[k];
            }
    }

    // Sums begin with the bias; of a maximum it comes last, as the same is added to all cells.
    static constexpr bool LATE = Conv::POOL && !Conv::AVERAGE;
    __device__ __forceinline__ static void start(Tiles<MT, NT>& acc, const f32 (&bias)[NT][2]) {
#pragma unroll
        for (int i = 0; i < MT * NT * 4; ++i)
            acc[i / 4 / NT][i / 4 % NT][i % 4] = LATE ? 0.0f : bias[i / 4 % NT][i % 2];
    }

    // Products over a map in planes of one channel: lanes pick theirs one by one.
    __device__ __forceinline__ static void gather(Tiles<MT, NT>& acc, const Bytes* map, int first,
                                                  const Bytes* fragments, int lane) {
        using Weights = ConvWeights<P, I>;
        constexpr int PRODUCTS = Conv::C * Conv::R * Conv::S;
        const Bytes* pixel[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                pixel[m][half] = map + F::BYTES * begin(first, m, lane / 4 + 8 * half);
#pragma unroll
        for (int step = 0; step < Weights::STEPS; ++step) {
            int offset[F::DEPTH / 4], there = 0;
#pragma unroll
            for (int i = 0; i < F::DEPTH / 4; ++i) {
                offset[i] = product(step * F::DEPTH, i, lane);
                there += step * F::DEPTH + F::product(0, i) < PRODUCTS ? 1 : 0;
            }
            u32 b[NT][2];
            load_fragments(b, fragments + 256 * Weights::TILES * step);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                u32 a[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) a[i] = word(pixel[m][i % 2], offset, i / 2, there);
#pragma unroll
                for (int n = 0; n < NT; ++n) F::multiply(acc[m][n], a, b[n]);
            }
        }
    }
    // Word `half` of a fragment; of products behind the first `there` it has zeros.
    __device__ __forceinline__ static u32 word(const Bytes* pixel,
                                               const int (&offset)[F::DEPTH / 4], int half,
                                               int there) {
        constexpr int EACH = F::DEPTH / 8;  // products in a word
        const int i = half * EACH, last = i + EACH - 1;
        if (i >= there) return 0;
        if (last >= there) return at<typename F::Number>(pixel + offset[i]);
        return F::gathered(pixel + offset[i], pixel + offset[last]);
    }
    // How far product i of a lane lies from a filter's first, in bytes; lanes have one of four.
    __device__ __forceinline__ static int product(int first, int i, int lane) {
        const auto of = [&](int k) { return F::BYTES * Conv::product(first + F::product(k, i)); };
        const int k = lane % 4;
        return k < 2 ? (k < 1 ? of(0) : of(1)) : k < 3 ? of(2) : of(3);
    }

    __device__ __forceinline__ static void store(const f32 (&acc)[NT][4], Bytes* map, int tile,
                                                 int n_tile, int lane) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned pixel = first_own() + tile * 16 + lane / 4 + 8 * half;
            if (OVER && pixel >= unsigned(end_own())) continue;
            const int z = int(pixel) + int(pixel / Conv::OW) * (Conv::ZPITCH - Conv::OW);
#pragma unroll
            for (int n = 0; n < NT; ++n)
                store_pair(map, n_tile + n, z, lane,
                           F::pair(activated<Conv>(acc[n][2 * half]),
                                   activated<Conv>(acc[n][2 * half + 1])));
        }
    }

    // What a lane has of a tile's pixel, two channels; whether they are there.
    __device__ __forceinline__ static bool store_pair(Bytes* map, int tile, int z, int lane,
                                                      Pair pair) {
        const int plane = tile * Conv::PLANES + F::plane(lane);
        constexpr bool THERE = Conv::N_GROUPS * NT * Conv::PLANES == Conv::KP;
        if (!THERE && plane >= Conv::KP) return false;
        at<Pair>(map + Conv::Z + plane * Conv::ZPLANE + 16 * z + F::byte_in_pixel(lane)) = pair;
        return true;
    }
    __device__ __forceinline__ static void store_codes(Bytes* map, int tile, int window, int lane,
                                                       u32 codes) {
        if constexpr (P::MODE == 2)
            at<u16>(map + Conv::CODE + 8 * (tile * WINDOWS + window) + 2 * (lane % 4)) = u16(codes);
    }

    // Where the window of a lane lies of those of tiles `first + m` and the next: its number in the
    // map, and its place in what is handed on.
    struct Window {
        bool own;
        int number, z;
        __device__ __forceinline__ Window(int first, int m, int lane) {
            const unsigned window = first_own() + (first / 2 + m / 2) * 8 + lane / 4;
            own = !OVER || window < unsigned(end_own());
            number = int(window);
            z = number + int(window / Conv::YW) * (Conv::ZPITCH - Conv::YW);
        }
    };

    __device__ __forceinline__ static void store_pooled(const Tiles<MT, NT>& acc,
                                                        const f32 (&bias)[NT][2], Bytes* map,
                                                        int first, int n_tile, int lane) {
        const bool other_way = swapped(lane / 4);
        // Of the upper row, the bit of the cell in the second of two tiles, and that in the first.
        const u32 in_second = other_way ? 1 : 2, in_first = other_way ? 2 : 1;
#pragma unroll
        for (int m = 0; m < MT; m += 2) {
            const Window window(first, m, lane);
            if (!window.own) continue;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                f32 best[2];
                u32 codes = 0;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const f32(&a)[4] = acc[m][n], (&b)[4] = acc[m + 1][n];
                    const f32 top = max_nan(a[e], b[e]), bottom = max_nan(a[2 + e], b[2 + e]);
                    // Of equals the first wins, row by row.
                    const bool lower = bottom > top;
                    const f32 x0 = lower ? a[2 + e] : a[e], x1 = lower ? b[2 + e] : b[e];
                    const bool of_second = x1 > x0 || (other_way && x1 >= x0);
                    const u32 code = of_second ? in_second : in_first;
                    codes |= (lower ? code << 2 : code) << 8 * e;
                    best[e] = activated<Conv>(max_nan(top, bottom) + bias[n][e]);
                }
                const Pair pair = F::pair(best[0], best[1]);
                if constexpr (Conv::RELU) codes = F::passed_bytes(codes, pair);
                if (store_pair(map, n_tile + n, window.z, lane, pair))
                    store_codes(map, n_tile + n, window.number, lane, codes);
            }
        }
    }

    // As store_pooled, for averages: which cells passed the rectifier.
    __device__ __forceinline__ static void store_averaged(const Tiles<MT, NT>& acc, Bytes* map,
                                                          int first, int n_tile, int lane) {
        const bool other_way = swapped(lane / 4);
#pragma unroll
        for (int m = 0; m < MT; m += 2) {
            const Window window(first, m, lane);
            if (!window.own) continue;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                f32 mean[2];
                u32 codes = 0;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    f32 sum[2];  // of the columns
#pragma unroll
                    for (int column = 0; column < 2; ++column) {
                        const f32(&a)[4] = acc[m + column][n], (&b)[4] = acc[m + 1 - column][n];
                        const f32 upper = other_way ? b[e] : a[e];
                        const f32 lower = other_way ? b[2 + e] : a[2 + e];
                        sum[column] = activated<Conv>(upper) + activated<Conv>(lower);
                        codes |= (Conv::RELU && upper <= 0.0f ? 0u : 1u) << (8 * e + column);
                        codes |= (Conv::RELU && lower <= 0.0f ? 0u : 4u) << (8 * e + column);
                    }
                    mean[e] = 0.25f * (sum[0] + sum[1]);
                }
                if (store_pair(map, n_tile + n, window.z, lane, F::pair(mean[0], mean[1])))
                    store_codes(map, n_tile + n, window.number, lane, codes);
            }
        }
    }
};
