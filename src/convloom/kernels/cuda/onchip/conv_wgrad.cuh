// The gradients of a convolution's filters and bias, summed over all images of a block in
// registers.
//
// A matrix product of filters by taps and channels, over the pixels of the block's strip: the output's gradient, transposed
// as it is read, times the input. A unit is WMT tiles of 16 filters by the taps of one filter row
// and WNT tiles of 8 channels; if GATHER, by WNT tiles of 8 products in KCRS order, behind whose
// last a column of ones gives the bias; else the units of the first row multiply ones as well.
// WSPLIT warps share a unit's pixels, a step of 16 (tf32: of 8) in turns. At the end their sums meet
// in shared memory, and the block's sums leave in the order of fragments:
// [unit][tile of 16][tap, tile of 8][lane][4], then the bias.
// Limit: reads of shared memory. Where ldmatrix cannot transpose (tf32), lanes read two neighbouring
// filters or channels of a pixel, which are then rows or columns of two halves; planes lie 64 bytes
// off a multiple of 128 from one another, so that no two lanes want one bank.
#pragma once

#include "onchip/multiply.cuh"
#include "onchip/strip.cuh"

template <class P, int I>
struct ConvWgrad {
    using Conv = ConvStage<P, I>;
    using F = Format<P>;
    static constexpr bool WIDE = F::BYTES == 4;
    static constexpr int MT = Conv::WMT, NT = Conv::WNT, SPLIT = Conv::WSPLIT;
    static constexpr int WARPS = int(P::THREADS) / 32;
    static constexpr int DEPTH = Conv::C * Conv::R * Conv::S;
    static constexpr int M_TILES = (Conv::K + 15) / 16, M_GROUPS = (M_TILES + MT - 1) / MT;
    // Tiles of 8 columns: products and ones if GATHER, else channels of one tap.
    static constexpr int N_TILES = Conv::GATHER ? (DEPTH + 8) / 8 : Conv::C_TILES;
    static constexpr int N_GROUPS = (N_TILES + NT - 1) / NT;
    static constexpr int ROWS = Conv::GATHER ? 1 : Conv::R, TAPS = Conv::GATHER ? 1 : Conv::S;
    static constexpr int UNITS = M_GROUPS * N_GROUPS * ROWS, JOBS = UNITS * SPLIT;
    static constexpr int EACH = (JOBS + WARPS - 1) / WARPS;  // jobs of a warp
    static constexpr int UNIT_SIZE = MT * TAPS * NT * 128;
    static constexpr int BIAS_AT = UNITS * UNIT_SIZE;
    static constexpr int SIZE = BIAS_AT + (Conv::GATHER ? 0 : M_GROUPS * MT * 16);
    using Own = Strip<P, I>;
    static constexpr int PIXELS = Own::PRODUCTS * Conv::OW, STEPS = (PIXELS + F::DEPTH - 1) / F::DEPTH;

    f32 sum[EACH][MT][TAPS * NT][4];
    f32 bias[EACH][MT][4];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            clear(sum[e]);
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) bias[e][m][i] = 0.0f;
        }
    }

    // The unit's first tile of filters, filter row, and first tile of columns.
    __device__ __forceinline__ static int m_tile(int unit) { return unit / (N_GROUPS * ROWS) * MT; }
    __device__ __forceinline__ static int row(int unit) { return unit / N_GROUPS % ROWS; }
    __device__ __forceinline__ static int n_tile(int unit) { return unit % N_GROUPS * NT; }
    __device__ __forceinline__ static bool gives_bias(int unit) {
        return !Conv::GATHER && Conv::BIAS && unit % (N_GROUPS * ROWS) == 0;
    }

    __device__ __forceinline__ void add(Bytes* shared, int buffer) {
        const int warp = threadIdx.x / 32;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int job = warp + e * WARPS;
            if (job < JOBS) add_job(shared, buffer, job % UNITS, job / UNITS, sum[e], bias[e]);
        }
    }

    __device__ __forceinline__ static void add_job(Bytes* shared, int buffer, int unit, int part,
                                                   Tiles<MT, TAPS * NT>& sum, f32 (&bias)[MT][4]) {
        const int lane = fresh_lane();
        const bool biased = gives_bias(unit);
        int column[Conv::GATHER ? NT : 1];
        // Which tile's column of this lane is that of ones, if any.
        const int ones = lane / 4 == DEPTH % 8 ? DEPTH / 8 - n_tile(unit) : -1;
        if constexpr (Conv::GATHER) {
#pragma unroll
            for (int n = 0; n < NT; ++n) column[n] = product((n_tile(unit) + n) * 8 + lane / 4);
        }
        const auto step_of = [&](int s) {
            Bytes* map = region<P>(shared, s / STEPS);
            const Bytes* input = input_of<P, I>(map, buffer);
            const int step = s % STEPS;
            u32 a[MT][4];
            load_gradient(a, map, step, m_tile(unit), lane);
            if constexpr (Conv::GATHER) {
                using Number = typename F::Number;
                const Number* x = &at<Number>(input);
                int place[F::DEPTH / 4];
#pragma unroll
                for (int i = 0; i < F::DEPTH / 4; ++i)
                    place[i] = input_place(step * F::DEPTH + F::product(lane, i));
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    u32 b[2] = {F::gathered(x + column[n], place, 0),
                                F::gathered(x + column[n], place, 1)};
                    if (n == ones) b[0] = b[1] = F::ONES;
#pragma unroll
                    for (int m = 0; m < MT; ++m) F::multiply(sum[m][n], a[m], b);
                }
            } else {
                multiply_row(sum, a, input, step, row(unit), n_tile(unit), lane);
                if (biased) {
                    const u32 ones[2] = {F::ONES, F::ONES};
#pragma unroll
                    for (int m = 0; m < MT; ++m) F::multiply(bias[m], a[m], ones);
                }
            }
        };
        constexpr int ALL = STEPS * int(P::IMAGES), ROUNDS = ALL / SPLIT;
        constexpr int UNROLL = Conv::GATHER ? 1 : 3;
#pragma unroll UNROLL
        for (int round = 0; round < ROUNDS; ++round) step_of(round * SPLIT + part);
        if (part < ALL % SPLIT) step_of(ROUNDS * SPLIT + part);
    }

    // Filters by pixels of the output's gradient; pixels that are not the block's are zeros, which
    // lie before the first.
    __device__ __forceinline__ static void load_gradient(u32 (&a)[MT][4], const Bytes* map,
                                                         int step, int m_tile, int lane) {
        if constexpr (WIDE) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Bytes* from =
                    map + Conv::DY + gradient_place(step * 8 + half * 4 + lane % 4) + lane / 4 % 2 * 8;
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    const uint2 two =
                        at<uint2>(from + there((m_tile + m) * 4 + lane / 8) * Conv::DYPLANE);
                    a[m][2 * half] = two.x, a[m][2 * half + 1] = two.y;
                }
            }
        } else {
            const int place = gradient_place(step * 16 + lane / 16 * 8 + lane % 8);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const int plane = there((m_tile + m) * 2 + lane / 8 % 2);
                ldmatrix_x4_trans(a[m], map + Conv::DY + plane * Conv::DYPLANE + place);
            }
        }
    }
    __device__ __forceinline__ static int gradient_place(int pixel) {
        const Rows rows = Own::products(Own::rank());
        const int p = Own::first(Own::rank()) + pixel / Conv::OW, q = pixel % Conv::OW;
        const bool own = p >= rows.begin && p < rows.end && pixel < PIXELS;
        return own ? 16 * (p * Conv::UH * Conv::DYPITCH + q * Conv::UW) : -16;
    }
    // A plane of filters; for one that is not there another, and what it gives is not used.
    __device__ __forceinline__ static int there(int plane) {
        return plane < Conv::KP ? plane : Conv::KP - 1;
    }

    // Where the window of a pixel of the output begins, in pixels of the input.
    __device__ __forceinline__ static int input_place(int pixel) {
        pixel = pixel < PIXELS ? pixel : PIXELS - 1;
        const int p = Own::first(Own::rank()) + pixel / Conv::OW;
        return (p * Conv::UH - Conv::PADH) * Conv::XPITCH + pixel % Conv::OW * Conv::UW -
               Conv::PADW;
    }

    __device__ __forceinline__ static void multiply_row(Tiles<MT, TAPS * NT>& sum,
                                                        const u32 (&a)[MT][4], const Bytes* input,
                                                        int step, int row, int n_tile, int lane) {
        if constexpr (WIDE) {
            multiply_row_wide(sum, a, input, step, row, n_tile, lane);
            return;
        }
        const int pixel = step * 16 + lane / 8 % 2 * 8 + lane % 8;
        const Bytes* x = input + 16 * (input_place(pixel) + row * Conv::XPITCH);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            int plane = n_tile + n + (n + 1 < NT ? lane / 16 : 0);
            plane = plane < Conv::CP ? plane : Conv::CP - 1;  // what it gives is not used
#pragma unroll
            for (int s = 0; s < TAPS; ++s) {
                u32 b[4];
                const Bytes* from = x + plane * Conv::XPLANE + 16 * s;
                if (n + 1 < NT) {
                    ldmatrix_x4_trans(b, from);
                } else {
                    u32 two[2];
                    ldmatrix_x2_trans(two, from);
                    b[0] = two[0], b[1] = two[1];
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (n + half >= NT) continue;
                    const u32 pair[2] = {b[2 * half], b[2 * half + 1]};
#pragma unroll
                    for (int m = 0; m < MT; ++m)
                        F::multiply(sum[m][s * NT + n + half], a[m], pair);
                }
            }
        }
    }

    // Columns of two tiles are channels in turns; those of a single one lie as they are.
    __device__ __forceinline__ static void multiply_row_wide(Tiles<MT, TAPS * NT>& sum,
                                                             const u32 (&a)[MT][4],
                                                             const Bytes* input, int step, int row,
                                                             int n_tile, int lane) {
        const Bytes* x[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            x[half] = input +
                      16 * (input_place(step * 8 + half * 4 + lane % 4) + row * Conv::XPITCH);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            const bool two = n + 1 < NT;
            const int group = lane / 4;
            int plane = (n_tile + n) * 2 + (two ? group / 2 : group / 4);
            plane = plane < Conv::CP ? plane : Conv::CP - 1;  // what it gives is not used
            const int offset = plane * Conv::XPLANE + (two ? group % 2 * 8 : group % 4 * 4);
#pragma unroll
            for (int s = 0; s < TAPS; ++s) {
                u32 b[2][2];  // [tile][half of the step]
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const Bytes* from = x[half] + offset + 16 * s;
                    if (two) {
                        const uint2 pair = at<uint2>(from);
                        b[0][half] = pair.x, b[1][half] = pair.y;
                    } else {
                        b[0][half] = at<u32>(from);
                    }
                }
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    if (n + j >= NT) continue;
#pragma unroll
                    for (int m = 0; m < MT; ++m)
                        F::multiply(sum[m][s * NT + n + j], a[m], b[j]);
                }
            }
        }
    }
    // Which channel column `column` of the n-th tile of a unit is, counted from the unit's first.
    __device__ __forceinline__ static int channel(int n, int column) {
        if (!WIDE || (n / 2 * 2 + 1 == NT)) return n * 8 + column;
        return n / 2 * 16 + 2 * column + n % 2;
    }

    // Column i of the products, in elements from where the window begins; any place behind the
    // last.
    __device__ __forceinline__ static int product(int i) {
        constexpr int RS = Conv::R * Conv::S;
        if (i >= DEPTH) return 0;
        return i / RS * Conv::XPLANE + i % RS / Conv::S * Conv::XPITCH + i % Conv::S;
    }

    // Put the warps' sums into `scratch`, shared memory for SPLIT * SIZE floats.
    __device__ __forceinline__ void put(f32* scratch) const {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int job = warp + e * WARPS, unit = job % UNITS;
            if (job >= JOBS) continue;
            f32* own = scratch + job / UNITS * SIZE;
#pragma unroll
            for (int i = 0; i < MT * TAPS * NT; ++i) {
                const f32(&four)[4] = sum[e][i / (TAPS * NT)][i % (TAPS * NT)];
                reinterpret_cast<float4*>(own + unit * UNIT_SIZE)[i * 32 + lane] =
                    make_float4(four[0], four[1], four[2], four[3]);
            }
            if (!gives_bias(unit) || lane % 4 != 0) continue;
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    own[BIAS_AT + (m_tile(unit) + m) * 16 + F::filter(half, lane / 4)] =
                        bias[e][m][2 * half];
        }
    }
    // Add them up and write the block's.
    __device__ __forceinline__ static void leave(const f32* scratch, f32* slab) {
        constexpr bool BIASED = Conv::GATHER || Conv::BIAS;
        for (int i = threadIdx.x; i < (BIASED ? SIZE : BIAS_AT); i += int(P::THREADS)) {
            f32 total = scratch[i];
#pragma unroll
            for (int part = 1; part < SPLIT; ++part) total += scratch[part * SIZE + i];
            slab[i] = total;
        }
    }

    // Which element of a parameter element `i` of the slab is: `bias` or weight (k, c, r, s); the
    // index is -1 if neither.
    struct Place {
        bool bias;
        int index, k, c, r, s;
    };
    __device__ static Place place(int i) {
        if (i >= BIAS_AT) {
            const int k = i - BIAS_AT;
            return {true, Conv::BIAS && k < Conv::K ? k : -1, k, 0, 0, 0};
        }
        const int unit = i / UNIT_SIZE, in_unit = i % UNIT_SIZE, tile = in_unit / 128;
        const int lane = in_unit / 4 % 32, part = in_unit % 4;
        const int k =
            (m_tile(unit) + tile / (TAPS * NT)) * 16 + F::filter(part / 2, lane / 4);
        const int n = tile % (TAPS * NT), in_tile = lane % 4 * 2 + part % 2;
        const int column = n_tile(unit) * 8 + n % NT * 8 + in_tile;
        int c = n_tile(unit) * 8 + channel(n % NT, in_tile), r = row(unit), s = n / NT;
        if constexpr (Conv::GATHER) {
            if (k >= Conv::K || column > DEPTH) return {false, -1, 0, 0, 0, 0};
            if (column == DEPTH) return {true, Conv::BIAS ? k : -1, k, 0, 0, 0};
            c = column / (Conv::R * Conv::S);
            r = column / Conv::S % Conv::R;
            s = column % Conv::S;
        }
        if (k >= Conv::K || c >= Conv::C) return {false, -1, 0, 0, 0, 0};
        const int index = Conv::ROW ? ((k * Conv::C + c) * Conv::R + r) * Conv::S + s
                                    : ((k * Conv::R + r) * Conv::S + s) * Conv::C + c;
        return {false, index, k, c, r, s};
    }
};
