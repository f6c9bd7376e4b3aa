// A fully connected layer of the images that a block carries, and the gradient of its input.
//
// Outputs are the rows of a tile in the forward product, images (at most 8) its columns; warps
// share the features, 16 in turns, and their sums meet in shared memory. In the backward product
// features are the rows, and all columns are the same image.
// Weights that stay in shared memory are read by ldmatrix, both ways (those of tf32 backward one by
// one); others come from a packed copy in device memory, a copy by features and one by outputs. Of
// tf32 a lane reads four neighbours of them at once: which products of 16 are its own is its choice.
// Limit: reading the weights once, each way.
#pragma once

#include "device/philox.cuh"
#include "onchip/features.cuh"
#include "onchip/gradient.cuh"
#include "onchip/multiply.cuh"
#include "onchip/weights.cuh"

template <class P, int J>
struct LinearLayer {
    using Linear = LinearStage<P, J>;
    using F = Format<P>;
    using Number = typename F::Number;
    static constexpr bool WIDE = F::BYTES == 4;
    static constexpr int O = Linear::O, WIDTH = Linear::WIDTH, IMAGES = int(P::IMAGES);
    static constexpr int WARPS = int(P::THREADS) / 32;
    static constexpr int SUMS = (O + 7) / 8 * 8;  // of an image and warp
    static constexpr int BLOCKS = 16 / F::CHANNELS;  // of 16 bytes, that 16 features are
    static constexpr int PLANE = Linear::PIXELS * F::CHANNELS;
    template <bool SHARED>
    using Sixteens = FeatureVectors<P, SHARED, WIDTH / PLANE, F::CHANNELS, 16, WIDTH / 16>;
    using Own = Sixteens<(J == 0 && P::CLUSTER > 1)>;

    // Of the forward product: tiles of 16 outputs at a time, vectors of 16 features that are read
    // at once, and sums that are made apart so that no product waits for the one before.
    static constexpr int O_TILES = (O + 15) / 16, MT = O_TILES < 4 ? O_TILES : 4;
    static constexpr int PER = WIDE ? 1 : 2, CHAINS = MT == 1 ? 4 : MT == 2 ? 2 : 1;
    using Sums = f32[CHAINS][MT][4];

    // Sums of each warp, [warp][image][SUMS].
    __device__ static void forward(Bytes* shared, const Bytes* packed) {
        static_assert(IMAGES <= 8);
        const u32 lane = fresh_lane();
        const int warp = threadIdx.x / 32;
        constexpr int AT_ONCE = PER * WARPS, ROUNDS = Own::COUNT / AT_ONCE;
        constexpr int SIDE = CHAINS == 4 ? 2 : 1, PAIRS = ROUNDS / SIDE;
        constexpr int UNROLL = MT > 2 ? 1 : SIDE * PAIRS <= 12 ? PAIRS : 4;
        for (int tile = 0; tile < O_TILES; tile += MT) {
            Sums acc;
#pragma unroll
            for (int chain = 0; chain < CHAINS; ++chain) clear_sums(acc[chain]);
#pragma unroll UNROLL
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int side = 0; side < SIDE; ++side)
                    multiply<true>(acc, shared, packed, pair * SIDE + side, side, tile, lane, warp);
            if constexpr (SIDE * PAIRS < ROUNDS)
                multiply<true>(acc, shared, packed, ROUNDS - 1, 0, tile, lane, warp);
            if constexpr (Own::COUNT % AT_ONCE != 0)
                if (ROUNDS * AT_ONCE + warp < Own::COUNT)
                    multiply<false>(acc, shared, packed, ROUNDS, 0, tile, lane, warp);
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) store(acc, shared, tile, m, e, lane, warp);
        }
    }

    // Sum `e` of a lane: of an output and an image.
    __device__ __forceinline__ static void store(const Sums& acc, Bytes* shared, int tile, int m,
                                                 int e, u32 lane, int warp) {
        const int image = 2 * (lane % 4) + e % 2;
        const int output = (tile + m) * 16 + e / 2 * 8 + lane / 4;
        if (e % 2 >= IMAGES) return;
        f32 total = acc[0][m][e];
#pragma unroll
        for (int chain = 1; chain < CHAINS; ++chain) total += acc[chain][m][e];
        if (image < IMAGES && output < SUMS)
            (&at<f32>(shared + int(P::SUMS_AT)))[(warp * IMAGES + image) * SUMS + output] = total;
    }
    __device__ __forceinline__ static void clear_sums(f32 (&sums)[MT][4]) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[m][e] = 0.0f;
    }

    // PER vectors of features for each warp; if not ALL of them are there, those that are.
    template <bool ALL>
    __device__ __forceinline__ static void multiply(Sums& acc, Bytes* shared,
                                                    const Bytes* packed, int round, int side,
                                                    int tile, u32 lane, int warp) {
        int vector[PER];
        bool there[PER];
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const int begin = (round * PER + i) * WARPS;
            there[i] = ALL || begin + warp < Own::COUNT;
            vector[i] = there[i] ? Own::template vector<WARPS>(begin, warp) : vector[0];
        }
        u32 b[2][2];
        load_features(b, shared, vector, lane);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            u32 a[2][4];
            load_weights(a, shared, packed, vector, tile + m, lane);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (ALL || there[half % PER])
                    F::multiply(acc[(2 * side + half) % CHAINS][m], a[half], b[half]);
        }
    }

    // A lane's part of the features of two steps. Columns behind the last image repeat the first;
    // what they give is not used.
    __device__ __forceinline__ static void load_features(u32 (&b)[2][2], Bytes* shared,
                                                         const int (&vector)[PER], u32 lane) {
        constexpr bool ROWS = !WIDE || Linear::RESIDENT;  // ldmatrix gives a lane its own
        const u32 image = ROWS ? lane % 8 : lane / 4;
        const Bytes* x = region<P>(shared, image < IMAGES ? image : 0) + Linear::X;
        if constexpr (ROWS) {
            // In this order the first lines do not depend on the round.
            x += 16 * (lane / 8 % BLOCKS);
            x += 16 * BLOCKS * int(lane / 16) * (vector[PER - 1] - vector[0]);
            u32 four[4];
            ldmatrix_x4(four, x + 16 * BLOCKS * vector[0]);
            b[0][0] = four[0], b[0][1] = four[1], b[1][0] = four[2], b[1][1] = four[3];
        } else {
            const uint4 four = at<uint4>(x + 64 * vector[0] + 16 * (lane % 4));
            b[0][0] = four.x, b[0][1] = four.y, b[1][0] = four.z, b[1][1] = four.w;
        }
    }

    // Its part of their weights. Outputs that are not there take another's; what they give is not
    // used.
    __device__ __forceinline__ static void load_weights(u32 (&a)[2][4], const Bytes* shared,
                                                        const Bytes* packed,
                                                        const int (&vector)[PER], int tile,
                                                        u32 lane) {
        const auto place = [&](int block, int output) {  // from the first, in 16 bytes
            return i64(block) * O + (output < O ? output : O - 1);
        };
        const Bytes* from = packed + Linear::PACKED;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int block = BLOCKS * vector[half % PER] + (WIDE ? 2 * half : 0);
            if constexpr (Linear::RESIDENT) {
                ldmatrix_x4(a[half], shared + Linear::FRAGMENTS +
                                         16 * int(place(block + lane / 16,
                                                        tile * 16 + lane % 16)));
            } else if constexpr (!WIDE) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    a[half][i] = at<u32>(from + 4 * (lane % 4) +
                                         16 * place(block + i / 2,
                                                    tile * 16 + i % 2 * 8 + lane / 4));
            } else {
                const uint4 four = at<uint4>(from + 16 * place(BLOCKS * vector[0] + lane % 4,
                                                               tile * 16 + half * 8 + lane / 4));
                a[0][half] = four.x, a[0][2 + half] = four.y;
                a[1][half] = four.z, a[1][2 + half] = four.w;
            }
        }
    }

    // The features of the block's images, as they lie, to where those of all images are kept for
    // the weight's gradient; by THREADS threads, of which this is number `thread`.
    template <int THREADS>
    __device__ __forceinline__ static void keep_features(Bytes* shared, Bytes* kept, i64 first,
                                                         i64 n, u32 thread) {
        constexpr int PARTS = WIDTH / F::CHANNELS;  // of 16 bytes
        constexpr int ROUNDS = (PARTS + THREADS - 1) / THREADS, UNROLL = ROUNDS <= 2 ? ROUNDS : 1;
#pragma unroll 1
        for (int image = 0; image < IMAGES; ++image) {
            if (IMAGES > 1 && first + image >= n) return;
            const Bytes* from = region<P>(shared, image) + Linear::X;
            Bytes* to = kept + 16 * PARTS * (first + image);
#pragma unroll UNROLL
            for (int round = 0; round < ROUNDS; ++round) {
                const u32 part = round * THREADS + thread;
                if (part >= PARTS) break;
                if (J > 0 || keeps_pixel<P>(part % Linear::PIXELS, part * F::CHANNELS >= PADDED))
                    at<uint4>(to + 16 * part) = at<uint4>(from + 16 * part);
            }
        }
    }
    // Features with the padding of their planes.
    static constexpr int PADDED = (Linear::C + F::CHANNELS - 1) / F::CHANNELS * PLANE;

    // Output `o` of an image but for its bias, from the warps' sums in their order; or of these the
    // `share`-th of SHARES shares.
    template <int SHARES>
    __device__ __forceinline__ static f32 part(const Bytes* shared, int image, int o, int share) {
        const f32* sums = &at<f32>(shared + int(P::SUMS_AT)) + image * SUMS + o;
        return sum_of_blocks<P, J, WARPS, SHARES>(sums, IMAGES * SUMS, share);
    }

    // Outputs become the features of the next layer: activated, some of them dropped.
    __device__ static void hand_on(Bytes* shared, const f32* bias, const u64* counter, i64 first) {
        using Next = LinearStage<P, J + 1>;
        for (int i = threadIdx.x; i < IMAGES * O; i += int(P::THREADS)) {
            const int image = i / O, o = i % O;
            f32 y = part<1>(shared, image, o, 0);
            if constexpr (Linear::BIAS) y += bias[o];
            y = activated<Linear>(y);
            if constexpr (Linear::DROPOUT) y *= factor(counter, (first + image) * O + o);
            at<Number>(region<P>(shared, image) + Next::X + F::BYTES * o) = F::of(y);
        }
    }

    __device__ __forceinline__ static void put_gradient(Bytes* map, int o, f32 gradient) {
        at<Number>(map + Linear::DY + F::BYTES * o) = F::of(gradient);
    }

    // An output that dropout let pass, as it was before.
    __device__ __forceinline__ static f32 whole(f32 y) {
        if constexpr (!Linear::DROPOUT || Linear::ACT <= RELU) return y;
        return y * (1.0f / __uint_as_float(u32(P::LINEAR_SCALE[J])));
    }

    // What dropout multiplies an output by.
    __device__ __forceinline__ static f32 factor(const u64* counter, i64 element) {
        const PhiloxBlock drawn =
            philox(counter[0], u32(P::LINEAR_STREAM[J]), counter[1], u64(element) / 4);
        const bool kept = drawn.word[element % 4] >= u64(P::LINEAR_THRESHOLD[J]);
        return kept ? __uint_as_float(u32(P::LINEAR_SCALE[J])) : 0.0f;
    }

    // Of the backward product: tiles that a unit has, one for each lane of a row; and whether the
    // gradients of the outputs stay in registers.
    static constexpr int TILES = 4, DEPTH = Linear::OUT / 16, HALVES = WIDE ? 2 : 1;
    static constexpr bool KEEPS = DEPTH <= 2;
    using OwnGradients = Sixteens<J == 0>;
    using Gradients = u32[KEEPS ? DEPTH : 1][2 * HALVES];

    // The gradient of the features, handed to the layer before. Features are the rows of a tile,
    // and all columns are the same image: so the four lanes of a row have the same sums of four
    // tiles, and each keeps those of one.
    __device__ static void backward(Bytes* shared, const Bytes* packed, const u64* counter,
                                    i64 first) {
        static_assert(IMAGES == 1);
        const u32 lane = fresh_lane();
        const int warp = threadIdx.x / 32;
        constexpr int UNITS = (OwnGradients::COUNT + TILES - 1) / TILES;
        constexpr int ROUNDS = UNITS / WARPS, AT_ONCE = KEEPS && !WIDE && ROUNDS > 1 ? 2 : 1;
        Gradients dy;
        if constexpr (KEEPS)
#pragma unroll
            for (int step = 0; step < DEPTH; ++step)
                load_gradient(dy[step], region<P>(shared, 0), step, lane);
#pragma unroll 1
        for (int round = 0; round < ROUNDS / AT_ONCE; ++round)
            backward_units<AT_ONCE>(shared, packed, counter, first, dy,
                                    round * AT_ONCE * WARPS + warp, lane);
#pragma unroll 1
        for (int unit = ROUNDS / AT_ONCE * AT_ONCE * WARPS + warp; unit < UNITS; unit += WARPS)
            backward_units<1>(shared, packed, counter, first, dy, unit, lane);
    }

    // Units WARPS apart, none of which waits for another.
    template <int AT_ONCE>
    __device__ __forceinline__ static void backward_units(Bytes* shared, const Bytes* packed,
                                                          const u64* counter, i64 first,
                                                          Gradients& dy, int unit, u32 lane) {
        Bytes* map = region<P>(shared, 0);
        // Of lanes of neighbouring rows, that of the even one has a pair of the tile's first half.
        const int odd_row = lane & 4, within = 2 * odd_row + 2 * int(lane / 8);
        f32 acc[AT_ONCE][TILES][4];
        int feature[AT_ONCE];
        Target target[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            feature[i] = vector_of(unit + i * WARPS, lane % 4) * 16 + within;
            target[i] = target_of(map, feature[i],
                                  (unit + i * WARPS) * TILES + int(lane % 4));
            multiply_back(acc[i], shared, packed, dy, unit + i * WARPS, lane);
        }
        f32 even[AT_ONCE], odd[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            // Tile lane % 4, bit by bit: an index would put them into local memory. One of the sums
            // is of the first half of its features, one of the second.
            f32 mine[2];
#pragma unroll
            for (int e = 0; e < 2; ++e)
                mine[e] = choose(lane & 2, choose(lane & 1, acc[i][3][2 * e], acc[i][2][2 * e]),
                                 choose(lane & 1, acc[i][1][2 * e], acc[i][0][2 * e]));
            const f32 got = __shfl_xor_sync(0xffffffffu, choose(odd_row, mine[0], mine[1]), 4);
            even[i] = choose(odd_row, got, mine[0]);
            odd[i] = choose(odd_row, mine[1], got);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (target[i].there)
                hand_back(map, counter, first, feature[i], target[i], lane, even[i], odd[i]);
    }

    // Tile i of a unit; behind the last one, that.
    __device__ __forceinline__ static int vector_of(int unit, int i) {
        constexpr int COUNT = OwnGradients::COUNT;
        if constexpr (COUNT % TILES == 0)
            return OwnGradients::template vector<TILES>(unit * TILES, i);
        const int own = unit * TILES + i;
        return OwnGradients::vector(own < COUNT ? own : COUNT - 1);
    }

    __device__ __forceinline__ static void multiply_back(f32 (&acc)[TILES][4], const Bytes* shared,
                                                         const Bytes* packed, Gradients& dy,
                                                         int unit, u32 lane) {
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][e] = 0.0f;
        constexpr int UNROLL = DEPTH < 4 ? DEPTH : 2;
#pragma unroll UNROLL
        for (int step = 0; step < DEPTH; ++step) {
            u32(&four)[2 * HALVES] = dy[KEEPS ? step : 0];
            if constexpr (!KEEPS)
                load_gradient(four, region<P>(const_cast<Bytes*>(shared), 0), step, lane);
            u32 a[TILES][HALVES][4];
#pragma unroll
            for (int i = 0; i < TILES; ++i)
                load_backward(a[i], shared, packed, step, vector_of(unit, i), lane);
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int half = 0; half < HALVES; ++half) {
                    const u32 b[2] = {four[2 * half], four[2 * half + 1]};
                    F::multiply(acc[i], a[i][half], b);
                }
        }
    }

    // A lane's part of the gradients of 16 outputs: the same in all columns.
    __device__ __forceinline__ static void load_gradient(u32 (&b)[WIDE ? 4 : 2], const Bytes* map,
                                                         int step, u32 lane) {
        const Bytes* dy = map + Linear::DY + 16 * F::BYTES * step;
        if constexpr (WIDE) {
            const uint4 four = at<uint4>(dy + 16 * (lane % 4));
            b[0] = four.x, b[1] = four.y, b[2] = four.z, b[3] = four.w;
        } else {
            b[0] = at<u32>(dy + 4 * (lane % 4));
            b[1] = at<u32>(dy + 16 + 4 * (lane % 4));
        }
    }

    // Its part of the weights of 16 features for them, of tf32 for two steps of products.
    __device__ __forceinline__ static void load_backward(u32 (&a)[WIDE ? 2 : 1][4],
                                                         const Bytes* shared, const Bytes* packed,
                                                         int step, int tile, u32 lane) {
        if constexpr (WIDE) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 four = weights_of(shared, packed, 16 * step + 4 * (lane % 4),
                                              tile * 16 + 8 * half + lane / 4);
                a[0][half] = four.x, a[0][2 + half] = four.y;
                a[1][half] = four.z, a[1][2 + half] = four.w;
            }
        } else if constexpr (Linear::RESIDENT) {
            // Outputs that are not there have gradients of zero.
            int output = step * 16 + lane / 16 * 8 + lane % 8;
            output = output < O ? output : O - 1;
            ldmatrix_x4_trans(
                a[0], shared + Linear::FRAGMENTS + 16 * ((2 * tile + lane / 8 % 2) * O + output));
        } else {
            const Bytes* from = packed + Linear::PACKED + i64(2) * WIDTH * O +
                                16 * (i64(2 * step) * WIDTH + tile * 16 + lane / 4) +
                                4 * (lane % 4);
            a[0][0] = at<u32>(from);
            a[0][1] = at<u32>(from + 128);
            a[0][2] = at<u32>(from + 16 * WIDTH);
            a[0][3] = at<u32>(from + 16 * WIDTH + 128);
        }
    }

    // The weights of four neighbouring outputs for a feature, of tf32. Outputs that are not there
    // have gradients of zero.
    __device__ __forceinline__ static uint4 weights_of(const Bytes* shared, const Bytes* packed,
                                                       int output, int feature) {
        if constexpr (Linear::RESIDENT) {
            const Bytes* from = shared + Linear::FRAGMENTS + 16 * (feature / 4 * O) + feature % 4 * 4;
            u32 four[4];
#pragma unroll
            for (int e = 0; e < 4; ++e)
                four[e] = at<u32>(from + 16 * (output + e < O ? output + e : O - 1));
            return make_uint4(four[0], four[1], four[2], four[3]);
        } else {
            return at<uint4>(packed + Linear::PACKED + i64(4) * WIDTH * O +
                             16 * (i64(output / 4) * WIDTH + feature));
        }
    }

    // Where the gradient of a pair of features goes, if that is the block's: of layer 0 the place in
    // its map, with the codes of the window.
    struct Target {
        bool there;
        int dy;
        u32 codes;
    };
    // Of a feature of the block's `vector`-th.
    __device__ __forceinline__ static Target target_of(const Bytes* map, int feature, int vector) {
        const bool there = OwnGradients::COUNT % TILES == 0 || vector < OwnGradients::COUNT;
        if constexpr (J > 0) {
            return {there && feature < LinearLayer<P, J - 1>::Linear::OUT, 0, 0};
        } else {
            using Last = ConvGradient<P, int(P::CONVS) - 1>;
            using Conv = typename Last::Conv;
            // Pixels of all planes are counted through, and so are their rows.
            const u32 pixel = u32(feature) / F::CHANNELS, row = pixel / Conv::YW;
            const u32 plane = row / Conv::YH, part = u32(feature) % F::CHANNELS;
            constexpr bool PAD = PADDED < WIDTH, MIXED = !OwnGradients::ALONE;
            if (!there || (PAD && plane >= Conv::KP) ||
                (MIXED && !own_row<P>(row - plane * Conv::YH)))
                return {false, 0, 0};
            const int dy = int(plane) * (Conv::DYPLANE - Last::CELLS * Conv::YH * Last::ROW) +
                           int(row) * Last::CELLS * (Last::ROW - Conv::YW * Last::COL) +
                           int(pixel) * Last::CELLS * Last::COL + F::BYTES * part;
            return {true, dy,
                    Last::codes(map, 8 * int(pixel - (plane - plane / Conv::PLANES) *
                                                         Linear::PIXELS) +
                                         plane % Conv::PLANES * F::CHANNELS + part)};
        }
    }

    __device__ __forceinline__ static void hand_back(Bytes* map, const u64* counter, i64 sample,
                                                     int feature, const Target& target, u32 lane,
                                                     f32 even, f32 odd) {
        if constexpr (J == 0) {
            ConvGradient<P, int(P::CONVS) - 1>::put(map, target.dy, F::BYTES * feature,
                                                    target.codes, (lane & 2) != 0, even, odd);
        } else {
            using Before = LinearLayer<P, J - 1>;
            using Pair = typename F::Pair;
            const Pair x = at<Pair>(map + Linear::X + F::BYTES * feature);
            if constexpr (Before::Linear::DROPOUT) {
                even *= Before::factor(counter, sample * Before::O + feature);
                odd *= Before::factor(counter, sample * Before::O + feature + 1);
            }
            even = passed<typename Before::Linear>(even, Before::whole(F::even(x)));
            odd = passed<typename Before::Linear>(odd, Before::whole(F::odd(x)));
            at<Pair>(map + Before::Linear::DY + F::BYTES * feature) =
                F::chosen(F::pair(even, odd), feature < Before::O, feature + 1 < Before::O);
        }
    }

    // Keep the gradients of the outputs for the weight's gradient.
    __device__ static void keep_gradients(Bytes* shared, Bytes* kept, i64 first, i64 n) {
        constexpr int PARTS = Linear::OUT / F::CHANNELS, THREADS = int(P::THREADS);
#pragma unroll
        for (int i = 0; i < IMAGES * PARTS; i += THREADS) {
            const int part = i + int(threadIdx.x);
            if (part >= IMAGES * PARTS) return;
            const int image = part / PARTS;
            if (IMAGES == 1 || first + image < n)
                at<uint4>(kept + 16 * (first * PARTS + part)) =
                    at<uint4>(region<P>(shared, image) + Linear::DY + 16 * (part % PARTS));
        }
    }
};
