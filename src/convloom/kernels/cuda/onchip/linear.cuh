// A fully connected layer of the images that a block carries, and the gradient of its input.
//
// In the forward product images are the rows of a tile (at most 8 of 16 are there), outputs its
// columns; warps share the features, 16 in turns, and their sums meet in shared memory. In the
// backward product features are the rows of a tile, and all columns are the same image.
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
    static constexpr int O_TILES = (O + 7) / 8, NT = O_TILES < 8 ? O_TILES : 8;
    static constexpr int SUMS = O_TILES * 8;  // of an image and warp
    static constexpr int PLANE = Linear::PIXELS * F::CHANNELS;
    template <bool SHARED>
    using Sixteens = FeatureVectors<P, SHARED, WIDTH / PLANE, F::CHANNELS, 16, WIDTH / 16>;
    using Own = Sixteens<(J == 0 && P::CLUSTER > 1)>;

    // Sums of each warp, [warp][image][SUMS], and the features as they are kept for the weight's
    // gradient.
    __device__ static void forward(Bytes* shared, const Bytes* packed, Bytes* kept, i64 first,
                                   i64 n) {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        const int image = lane / 4 < IMAGES ? lane / 4 : 0;
        const Bytes* x = region<P>(shared, image) + Linear::X;
        f32* sums = &at<f32>(shared + int(P::SUMS_AT));
        for (int tile = 0; tile < O_TILES; tile += NT) {
            Tiles<1, NT> acc;
            clear(acc);
            // Rows behind the last image repeat the first; what they give is not used.
            const auto multiply = [&](int i) {
                const int step = Own::vector(i);
                if constexpr (WIDE)
                    multiply_wide(acc[0], x, shared, packed, step, tile, lane);
                else
                    multiply_narrow(acc[0], x, shared, packed, step, tile, lane);
            };
            constexpr int STEPS = Own::COUNT, ROUNDS = STEPS / WARPS, UNROLL = NT <= 2 ? 8 : NT <= 4 ? 4 : 2;
#pragma unroll UNROLL
            for (int round = 0; round < ROUNDS; ++round) multiply(round * WARPS + warp);
            if (warp < STEPS % WARPS) multiply(ROUNDS * WARPS + warp);
            if (lane / 4 < IMAGES)
#pragma unroll
                for (int j = 0; j < NT; ++j)
                    if (tile + j < O_TILES)
                        *reinterpret_cast<float2*>(sums + (warp * IMAGES + image) * SUMS +
                                                   (tile + j) * 8 + lane % 4 * 2) =
                            make_float2(acc[0][j][0], acc[0][j][1]);
        }
        if (kept == nullptr) return;
        constexpr int PARTS = WIDTH / F::CHANNELS;  // of 16 bytes
        for (int i = threadIdx.x; i < IMAGES * PARTS; i += int(P::THREADS)) {
            const int from = i / PARTS, part = i % PARTS;
            const bool keeps =
                J > 0 || keeps_pixel<P>(part % Linear::PIXELS, part * F::CHANNELS >= PADDED);
            if (keeps && first + from < n)
                at<uint4>(kept + 16 * ((first + from) * PARTS + part)) =
                    at<uint4>(region<P>(shared, from) + Linear::X + 16 * part);
        }
    }
    // Features with the padding of their planes.
    static constexpr int PADDED = (Linear::C + F::CHANNELS - 1) / F::CHANNELS * PLANE;

    // 16 features of bfloat16.
    __device__ __forceinline__ static void multiply_narrow(f32 (&sum)[NT][4], const Bytes* x,
                                                           const Bytes* shared,
                                                           const Bytes* packed, int step, int tile,
                                                           int lane) {
        const Bytes* own = x + 32 * step + 4 * (lane % 4);
        const u32 a[4] = {at<u32>(own), 0u, at<u32>(own + 16), 0u};
        u32 b[NT][2];
        load_forward(b, shared, packed, step, tile, lane);
#pragma unroll
        for (int j = 0; j < NT; ++j) F::multiply(sum[j], a, b[j]);
    }

    // 16 features of tf32, in two steps.
    __device__ __forceinline__ static void multiply_wide(f32 (&sum)[NT][4], const Bytes* x,
                                                         const Bytes* shared, const Bytes* packed,
                                                         int step, int tile, int lane) {
        if constexpr (Linear::RESIDENT) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                multiply_narrow(sum, x, shared, packed, 2 * step + half, tile, lane);
        } else {
            const uint4 four = at<uint4>(x + 64 * step + 16 * (lane % 4));
            const u32 a[2][4] = {{four.x, 0u, four.y, 0u}, {four.z, 0u, four.w, 0u}};
            uint4 weight[NT];
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                int output = (tile + j) * 8 + lane / 4;
                output = output < O ? output : O - 1;
                weight[j] = at<uint4>(packed + Linear::PACKED +
                                      16 * (i64(4 * step + lane % 4) * O + output));
            }
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const u32 b[2][2] = {{weight[j].x, weight[j].y}, {weight[j].z, weight[j].w}};
                F::multiply(sum[j], a[0], b[0]);
                F::multiply(sum[j], a[1], b[1]);
            }
        }
    }

    // Outputs that are not there take another's weights; what they give is not used.
    __device__ __forceinline__ static void load_forward(u32 (&b)[NT][2], const Bytes* shared,
                                                        const Bytes* packed, int step, int tile,
                                                        int lane) {
        if constexpr (Linear::RESIDENT) {
#pragma unroll
            for (int j = 0; j < NT; j += 2) {
                int output = (tile + j + lane / 16) * 8 + lane % 8;
                output = output < O ? output : O - 1;
                u32 four[4];
                ldmatrix_x4(four, shared + Linear::FRAGMENTS +
                                      16 * ((2 * step + lane / 8 % 2) * O + output));
                b[j][0] = four[0], b[j][1] = four[1];
                if (j + 1 < NT) b[j + 1][0] = four[2], b[j + 1][1] = four[3];
            }
        } else {
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                int output = (tile + j) * 8 + lane / 4;
                output = output < O ? output : O - 1;
                const Bytes* from = packed + Linear::PACKED + 16 * (i64(2 * step) * O + output);
                b[j][0] = at<u32>(from + 4 * (lane % 4));
                b[j][1] = at<u32>(from + 16 * O + 4 * (lane % 4));
            }
        }
    }

    // Output `o` of an image, from the warps' sums in their order.
    __device__ __forceinline__ static f32 output(const Bytes* shared, const f32* bias, int image,
                                                 int o) {
        const f32* sums = &at<f32>(shared + int(P::SUMS_AT)) + image * SUMS + o;
        const f32 total = sum_of_blocks<P, J, WARPS>(sums, IMAGES * SUMS);
        return Linear::BIAS ? total + bias[o] : total;
    }

    // Outputs become the features of the next layer: activated, some of them dropped.
    __device__ static void hand_on(Bytes* shared, const f32* bias, const u64* counter, i64 first) {
        using Next = LinearStage<P, J + 1>;
        for (int i = threadIdx.x; i < IMAGES * O; i += int(P::THREADS)) {
            const int image = i / O, o = i % O;
            f32 y = output(shared, bias, image, o);
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

    // The gradient of the features, handed to the layer before. Features are the rows of a tile,
    // and all columns are the same image: so the four lanes of a row have the same sums of four
    // tiles, and each keeps those of one.
    __device__ static void backward(Bytes* shared, const Bytes* packed, const u64* counter,
                                    i64 first) {
        static_assert(IMAGES == 1);
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        constexpr int DEPTH = Linear::OUT / 16, AT_ONCE = 4;
        constexpr bool KEEPS = DEPTH <= 2;  // the gradients of the outputs, in registers
        using Own = Sixteens<J == 0>;
        constexpr int UNITS = (Own::COUNT + AT_ONCE - 1) / AT_ONCE;
        constexpr bool WHOLE = Own::COUNT % AT_ONCE == 0;
        Bytes* map = region<P>(shared, 0);
        u32 dy[KEEPS ? DEPTH : 1][WIDE ? 4 : 2];
        if constexpr (KEEPS)
#pragma unroll
            for (int step = 0; step < DEPTH; ++step) load_gradient(dy[step], map, step, lane);
        for (int unit = warp; unit < UNITS; unit += WARPS) {
            int tile[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int own = unit * AT_ONCE + i;
                tile[i] = Own::vector(WHOLE || own < Own::COUNT ? own : Own::COUNT - 1);
            }
            f32 acc[AT_ONCE][4];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[i][e] = 0.0f;
            constexpr int UNROLL = DEPTH < 4 ? DEPTH : 2;
#pragma unroll UNROLL
            for (int step = 0; step < DEPTH; ++step) {
                if constexpr (!KEEPS) load_gradient(dy[0], map, step, lane);
                u32 a[AT_ONCE][WIDE ? 2 : 1][4];
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
                    load_backward(a[i], shared, packed, step, tile[i], lane);
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                    for (int half = 0; half < (WIDE ? 2 : 1); ++half) {
                        const u32(&four)[WIDE ? 4 : 2] = dy[KEEPS ? step : 0];
                        const u32 b[2] = {four[2 * half], four[2 * half + 1]};
                        F::multiply(acc[i], a[i][half], b);
                    }
            }
            // Tile lane % 4, bit by bit: an index would put them into local memory. One of the sums
            // is of the first half of its features, one of the second.
            f32 mine[2];
#pragma unroll
            for (int e = 0; e < 2; ++e)
                mine[e] = choose(lane & 2, choose(lane & 1, acc[3][2 * e], acc[2][2 * e]),
                                 choose(lane & 1, acc[1][2 * e], acc[0][2 * e]));
            // Lanes of neighbouring rows make pairs of them, that of an even row in the first half.
            const int odd_row = lane & 4;
            const f32 got =
                __shfl_xor_sync(0xffffffffu, choose(odd_row, mine[0], mine[1]), 4);
            const f32 even = choose(odd_row, got, mine[0]), odd = choose(odd_row, mine[1], got);
            const int own = unit * AT_ONCE + (lane & 3);
            const int feature = Own::vector(own) * 16 + 2 * odd_row + 2 * (lane / 8);
            if (WHOLE || own < Own::COUNT)
                hand_back(map, counter, first, feature, lane, even, odd);
        }
    }

    // A lane's part of the gradients of 16 outputs: the same in all columns.
    __device__ __forceinline__ static void load_gradient(u32 (&b)[WIDE ? 4 : 2], const Bytes* map,
                                                         int step, int lane) {
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
                                                         int step, int tile, int lane) {
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

    __device__ __forceinline__ static void hand_back(Bytes* map, const u64* counter, i64 sample,
                                                     int feature, int lane, f32 even, f32 odd) {
        if constexpr (J == 0) {
            using Last = ConvGradient<P, int(P::CONVS) - 1>;
            // Pixels of all planes are counted through, and so are their rows.
            using Conv = typename Last::Conv;
            const u32 pixel = u32(feature) / F::CHANNELS, row = pixel / Conv::YW;
            const u32 plane = row / Conv::YH, part = u32(feature) % F::CHANNELS;
            if ((PADDED == WIDTH || plane < Conv::KP) && own_row<P>(row - plane * Conv::YH))
                Last::put(map,
                          int(plane) * (Conv::DYPLANE - Last::CELLS * Conv::YH * Last::ROW) +
                              int(row) * Last::CELLS * (Last::ROW - Conv::YW * Last::COL) +
                              int(pixel) * Last::CELLS * Last::COL + F::BYTES * part,
                          F::BYTES * feature,
                          8 * int(pixel - (plane - plane / Conv::PLANES) * Linear::PIXELS) +
                              plane % Conv::PLANES * F::CHANNELS + part,
                          (lane & 2) != 0, even, odd);
        } else {
            using Before = LinearLayer<P, J - 1>;
            if (feature >= Before::Linear::OUT) return;
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
    __device__ static void keep(Bytes* shared, Bytes* kept, i64 first, i64 n) {
        constexpr int PARTS = Linear::OUT / F::CHANNELS;
        // The last warp: the first has had the loss.
#pragma unroll 1
        for (int i = int(P::THREADS) - 1 - int(threadIdx.x); i < IMAGES * PARTS;
             i += int(P::THREADS)) {
            const int image = i / PARTS, part = i % PARTS;
            if (first + image < n)
                at<uint4>(kept + 16 * ((first + image) * PARTS + part)) =
                    at<uint4>(region<P>(shared, image) + Linear::DY + 16 * part);
        }
    }
};
