// The gradients of a convolution's filters and bias, summed over all images of a block in
// registers.
//
// A matrix product of filters by taps and channels, over the pixels of the block's strip: the
// output's gradient, transposed as it is read, times the input. A unit is WMT tiles of 16 filters
// by the taps of one filter row and WNT tiles of 8 channels; if GATHER, by WNT tiles of 8 products
// in KCRS order, behind whose last a column of ones gives the bias; else the units of the first
// row multiply ones as well. WSPLIT warps share a unit's pixels, rows or steps of 16 (tf32: of 8) in
// turns; half of a step's lie in the first half of the strip's rows, half as far behind
// (pixel_walk.cuh). At the end their sums meet in shared memory, and the block's sums leave in the
// order of fragments:
// [unit][tile of 16][tap, tile of 8][lane][4], then the bias.
// Limit: reads of shared memory. Where ldmatrix cannot transpose (tf32), lanes read two neighbouring
// filters or channels of a pixel, which are then rows or columns of two halves; planes lie 64 bytes
// off a multiple of 128 from one another, so that no two lanes want one bank.
#pragma once

#include "onchip/multiply.cuh"
#include "onchip/pixel_walk.cuh"
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
    // A step takes as many pixels of the strip's first rows as of the others (pixel_walk.cuh).
    static constexpr int EACH_HALF = F::DEPTH / 2;
    using Walk = PixelWalk<P, I>;
    static constexpr int STEPS = (Walk::HALF + EACH_HALF - 1) / EACH_HALF;

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

    // Pixels of a half that a lane reads in a step: of bfloat16 that of ldmatrix, and if GATHER
    // those of its products, of two that share a row the first.
    static constexpr int TOGETHER = Conv::OW % 2 == 0 ? 2 : 1;
    static constexpr int WALKS = !WIDE && Conv::GATHER ? 1 + 2 / TOGETHER : 1;

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
        int column[Conv::GATHER ? NT : 1];
        // Which tile's column of this lane is that of ones, if any.
        const int ones = lane / 4 == DEPTH % 8 ? DEPTH / 8 - n_tile(unit) : -1;
        if constexpr (Conv::GATHER) {
#pragma unroll
            for (int n = 0; n < NT; ++n)
                column[n] = F::BYTES * Conv::product((n_tile(unit) + n) * 8 + lane / 4);
        }
        for (int image = 0; image < int(P::IMAGES); ++image) {
            Bytes* map = region<P>(shared, image);
            const Bytes* gradient = map + Conv::DY + filters(m_tile(unit), 0, lane);
            const Bytes* input = input_of<P, I>(map, buffer);
            if constexpr (!Conv::GATHER)
                input += columns(n_tile(unit), lane) + 16 * row(unit) * Conv::XPITCH;
            // A named structure and not a generic lambda, which NVRTC 13.0 takes for host code.
            if (gives_bias(unit))
                each_step(gradient, input, part, lane,
                          Step<!Conv::GATHER && Conv::BIAS>{sum, bias, column, ones, unit, lane});
            else
                each_step(gradient, input, part, lane,
                          Step<false>{sum, bias, column, ones, unit, lane});
        }
    }

    // What is done with the pixels of a step; BIASED: for the bias too.
    template <bool BIASED>
    struct Step {
        Tiles<MT, TAPS * NT>& sum;
        f32 (&bias)[MT][4];
        const int (&column)[Conv::GATHER ? NT : 1];
        int ones, unit, lane;

        __device__ __forceinline__ void operator()(const Walk (&walk)[WALKS]) const {
            u32 a[MT][4];
            load_gradient(a, walk, m_tile(unit), lane);
            if constexpr (Conv::GATHER)
                multiply_gathered(sum, a, walk, column, ones);
            else
                multiply_row(sum, a, walk, n_tile(unit), lane);
            if constexpr (BIASED) {
                const u32 ones_of[2] = {F::ONES, F::ONES};
#pragma unroll
                for (int m = 0; m < MT; ++m) F::multiply(bias[m], a[m], ones_of);
            }
        }
    };

    // Take each of a part's steps, of maps that begin at `gradient` and `input`.
    template <class Use>
    __device__ __forceinline__ static void each_step(const Bytes* gradient, const Bytes* input,
                                                     int part, int lane, const Use& step) {
        // Where rows are whole steps and warps have as many of them, they take rows in turns.
        constexpr int OF_ROW = Conv::OW / EACH_HALF;
        constexpr bool BY_ROWS =
            Conv::OW % EACH_HALF == 0 && Walk::ROWS % SPLIT == 0 && OF_ROW <= 4;
        constexpr int ROUNDS = STEPS / SPLIT, REST = STEPS % SPLIT;
        constexpr int BEGIN = BY_ROWS ? Conv::OW : EACH_HALF;
        Walk walk[WALKS];
#pragma unroll
        for (int w = 0; w < WALKS; ++w)
            walk[w].begin(gradient, input, part * BEGIN + slot(w, lane), half(w, lane));
        if constexpr (BY_ROWS) {
#pragma unroll 1
            for (int row = part; row < Walk::ROWS; row += SPLIT) {
#pragma unroll
                for (int i = 0; i < OF_ROW; ++i) {
                    take<true>(walk, gradient, input, row * OF_ROW + i, lane, step);
#pragma unroll
                    for (int w = 0; w < WALKS; ++w) walk[w].template move<0, EACH_HALF>();
                }
#pragma unroll
                for (int w = 0; w < WALKS; ++w) walk[w].template move<SPLIT, -Conv::OW>();
            }
        } else {
#pragma unroll 3
            for (int round = 0; round < ROUNDS; ++round) {
                take<ROUNDS * SPLIT * EACH_HALF <= Walk::HALF>(walk, gradient, input,
                                                               round * SPLIT + part, lane, step);
#pragma unroll
                for (int w = 0; w < WALKS; ++w) walk[w].template go_on<SPLIT * EACH_HALF>();
            }
            if (part < REST)
                take<STEPS * EACH_HALF <= Walk::HALF>(walk, gradient, input, ROUNDS * SPLIT + part,
                                                      lane, step);
        }
    }
    // Take step `number`; WHOLE: all of its pixels are there.
    template <bool WHOLE, class Use>
    __device__ __forceinline__ static void take(const Walk (&walk)[WALKS], const Bytes* gradient,
                                                const Bytes* input, int number, int lane,
                                                const Use& step) {
        Walk checked[WALKS];
#pragma unroll
        for (int w = 0; w < WALKS; ++w) {
            const int pixel = number * EACH_HALF + slot(w, lane);
            checked[w] = walk[w];
            if constexpr (!(Walk::EVEN && WHOLE))
                checked[w].check(gradient, input, pixel, half(w, lane));
        }
        step(checked);
    }

    // Which pixel of a half a walk of a lane begins with.
    __device__ __forceinline__ static int slot(int w, int lane) {
        if constexpr (WIDE) return lane % 4;
        return w == 0 ? lane % 8 : lane % 4 * 2 + w - 1;
    }
    // ldmatrix reads of one half, others of both.
    __device__ __forceinline__ static typename Walk::Half half(int w, int lane) {
        if (WIDE || w > 0) return {false, false};
        return {lane >= 16, lane / 8 % 2 != 0};
    }

    // Filters by pixels of the output's gradient.
    __device__ __forceinline__ static void load_gradient(u32 (&a)[MT][4],
                                                         const Walk (&walk)[WALKS], int m_tile,
                                                         int lane) {
        const int first = filters(m_tile, 0, lane);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const int plane = filters(m_tile, m, lane) - first;
            if constexpr (WIDE) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint2 two = at<uint2>(walk[0].gradient_of(half) + plane);
                    a[m][2 * half] = two.x, a[m][2 * half + 1] = two.y;
                }
            } else {
                ldmatrix_x4_trans(a[m], walk[0].gradient + plane);
            }
        }
    }
    // Where a lane's filters of tile `m_tile + m` lie; for a plane that is not there another, and
    // what it gives is not used.
    __device__ __forceinline__ static int filters(int m_tile, int m, int lane) {
        constexpr bool OVER = M_GROUPS * MT * 16 > Conv::KP * F::CHANNELS;
        const int plane = (m_tile + m) * 16 / F::CHANNELS + (WIDE ? lane / 8 : lane / 8 % 2);
        const int there = OVER ? int(least(plane, Conv::KP - 1)) : plane;
        return there * Conv::DYPLANE + (WIDE ? lane / 4 % 2 * 8 : 0);
    }

    __device__ __forceinline__ static void multiply_gathered(Tiles<MT, TAPS * NT>& sum,
                                                             const u32 (&a)[MT][4],
                                                             const Walk (&walk)[WALKS],
                                                             const int (&column)[NT], int ones) {
        constexpr int FIRST = WIDE ? 0 : 1;
        const int next = Conv::UW * F::BYTES;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            u32 b[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Bytes* x = walk[FIRST].input_of(half) + column[n];
                const Bytes* y = TOGETHER == 2 ? x + next
                                               : walk[WALKS - 1].input_of(half) + column[n];
                b[half] = F::gathered(x, y);
            }
            if (n == ones) b[0] = b[1] = F::ONES;
#pragma unroll
            for (int m = 0; m < MT; ++m) F::multiply(sum[m][n], a[m], b);
        }
    }

    // Where a lane's channels of tile `n_tile + n` lie; for a plane that is not there another, and
    // what it gives is not used.
    __device__ __forceinline__ static int channels(int n_tile, int n, int lane) {
        constexpr bool OVER = N_GROUPS * NT * 8 > Conv::CP * F::CHANNELS;
        const int group = lane / 4;
        const bool two = n / 2 * 2 + 1 < NT;
        int plane = n_tile + n;
        if constexpr (WIDE) plane = plane * 2 + (two ? group / 2 : group / 4);
        const int there = OVER ? int(least(plane, Conv::CP - 1)) : plane;
        return there * Conv::XPLANE + (!WIDE ? 0 : two ? group % 2 * 8 : group % 4 * 4);
    }

    // Column j of a unit's, tiles of a tap and tap after tap, counted from the first.
    static constexpr int COLUMNS = TAPS * NT;
    __device__ __forceinline__ static int column(int n_tile, int j, int lane) {
        return channels(n_tile, j % NT, lane) - channels(n_tile, 0, lane) + 16 * (j / NT);
    }
    // Where a lane's first column begins; if ldmatrix reads two, that of lanes with bit 4 is the
    // second.
    __device__ __forceinline__ static int columns(int n_tile, int lane) {
        const bool second = !WIDE && COLUMNS > 1 && lane >= 16;
        return channels(n_tile, 0, lane) + (second ? column(n_tile, 1, lane) : 0);
    }
    __device__ __forceinline__ static void multiply_row(Tiles<MT, TAPS * NT>& sum,
                                                        const u32 (&a)[MT][4],
                                                        const Walk (&walk)[WALKS], int n_tile,
                                                        int lane) {
        if constexpr (WIDE) {
            multiply_row_wide(sum, a, walk, n_tile, lane);
            return;
        }
        const int apart = COLUMNS > 1 ? column(n_tile, 1, lane) : 0;
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 2) {
            const int here = column(n_tile, j, lane);
            const int between = j + 1 < COLUMNS ? column(n_tile, j + 1, lane) - here : 0;
            u32 b[4];
            ldmatrix_x4_trans(b, walk[0].input + (here + (lane >= 16 ? between - apart : 0)));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (j + half >= COLUMNS) continue;
                const u32 pair[2] = {b[2 * half], b[2 * half + 1]};
#pragma unroll
                for (int m = 0; m < MT; ++m) F::multiply(sum[m][j + half], a[m], pair);
            }
        }
    }

    // Columns of two tiles are channels in turns; those of a single one lie as they are.
    __device__ __forceinline__ static void multiply_row_wide(Tiles<MT, TAPS * NT>& sum,
                                                             const u32 (&a)[MT][4],
                                                             const Walk (&walk)[WALKS], int n_tile,
                                                             int lane) {
        const int begin = channels(n_tile, 0, lane);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            const bool two = n + 1 < NT;
            const int offset = channels(n_tile, n, lane) - begin;
#pragma unroll
            for (int s = 0; s < TAPS; ++s) {
                u32 b[2][2];  // [tile][half of the step]
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const Bytes* from = walk[0].input_of(half) + offset + 16 * s;
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
