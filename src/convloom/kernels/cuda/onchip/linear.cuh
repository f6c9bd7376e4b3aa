// A fully connected layer of the images that a block carries, and the gradient of its input.
//
// Images are the rows of a tile (at most 8 of 16 are there), outputs or features its columns. In
// the forward product warps share the features, 16 in turns, and their sums meet in shared memory.
// Weights that stay in shared memory are read by ldmatrix, both ways; others come from a packed
// copy in device memory, in fragments: a copy by features and one by outputs.
// Limit: reading the weights once, each way.
#pragma once

#include "device/philox.cuh"
#include "onchip/gradient.cuh"
#include "onchip/multiply.cuh"
#include "onchip/weights.cuh"

template <class P, int J>
struct LinearLayer {
    using Linear = LinearStage<P, J>;
    static constexpr int O = Linear::O, WIDTH = Linear::WIDTH, IMAGES = int(P::IMAGES);
    static constexpr int WARPS = int(P::THREADS) / 32, STEPS = WIDTH / 16;
    static constexpr int O_TILES = (O + 7) / 8, NT = O_TILES < 8 ? O_TILES : 8;
    static constexpr int SUMS = O_TILES * 8;  // of an image and warp

    // Sums of each warp, [warp][image][SUMS], and the features as they are kept for the weight's
    // gradient.
    __device__ static void forward(Bytes* shared, const Bytes* packed, Bytes* kept, i64 first,
                                   i64 n) {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        const int image = lane / 4 < IMAGES ? lane / 4 : 0;
        const Bytes* x = region<P>(shared, image) + Linear::X + 4 * (lane % 4);
        f32* sums = &at<f32>(shared + int(P::SUMS_AT));
        for (int tile = 0; tile < O_TILES; tile += NT) {
            Tiles<1, NT> acc;
            clear(acc);
            const auto multiply = [&](int step) {
                // Rows behind the last image repeat the first; what they give is not used.
                const u32 a[4] = {at<u32>(x + 32 * step), 0u, at<u32>(x + 32 * step + 16), 0u};
                u32 b[NT][2];
                load_forward(b, shared, packed, step, tile, lane);
#pragma unroll
                for (int j = 0; j < NT; ++j) mma_m16n8k16_bf16(acc[0][j], a, b[j], acc[0][j]);
            };
            constexpr int ROUNDS = STEPS / WARPS, UNROLL = NT <= 2 ? 8 : NT <= 4 ? 4 : 2;
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
        for (int i = threadIdx.x; i < IMAGES * WIDTH / 8; i += int(P::THREADS)) {
            const int from = i / (WIDTH / 8), part = i % (WIDTH / 8);
            if (first + from < n)
                at<uint4>(kept + 2 * ((first + from) * WIDTH + part * 8)) =
                    at<uint4>(region<P>(shared, from) + Linear::X + 16 * part);
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
        const f32* sums = &at<f32>(shared + int(P::SUMS_AT));
        f32 total = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) total += sums[(warp * IMAGES + image) * SUMS + o];
        return Linear::BIAS ? total + bias[o] : total;
    }

    // Outputs become the features of the next layer: rectified, some of them dropped.
    __device__ static void hand_on(Bytes* shared, const f32* bias, const u64* counter, i64 first) {
        using Next = LinearStage<P, J + 1>;
        for (int i = threadIdx.x; i < IMAGES * O; i += int(P::THREADS)) {
            const int image = i / O, o = i % O;
            f32 y = output(shared, bias, image, o);
            if constexpr (Linear::RELU) y = rectified(y);
            if constexpr (Linear::DROPOUT) y *= factor(counter, (first + image) * O + o);
            at<Bf16>(region<P>(shared, image) + Next::X + 2 * o) = bf16_of(y);
        }
    }

    __device__ __forceinline__ static void put_gradient(Bytes* map, int o, f32 gradient) {
        at<Bf16>(map + Linear::DY + 2 * o) = bf16_of(gradient);
    }

    // What dropout multiplies an output by.
    __device__ __forceinline__ static f32 factor(const u64* counter, i64 element) {
        const PhiloxBlock drawn =
            philox(counter[0], u32(P::LINEAR_STREAM[J]), counter[1], u64(element) / 4);
        const bool kept = drawn.word[element % 4] >= u64(P::LINEAR_THRESHOLD[J]);
        return kept ? __uint_as_float(u32(P::LINEAR_SCALE[J])) : 0.0f;
    }

    // The gradient of the features: staged behind a convolution, else that of the layer before.
    __device__ static void backward(Bytes* shared, const Bytes* packed, const u64* counter,
                                    i64 first) {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        const int image = lane / 4 < IMAGES ? lane / 4 : 0;
        constexpr int DEPTH = Linear::OUT / 16, PAIRS = WIDTH / 16;
        // Pairs of tiles of 8 features, so many at once that their reads overlap.
        constexpr int AT_ONCE = DEPTH == 1 ? 4 : DEPTH <= 4 ? 2 : 1;
        const Bytes* dy = region<P>(shared, image) + Linear::DY + 4 * (lane % 4);
        for (int first_pair = warp; first_pair < PAIRS; first_pair += WARPS * AT_ONCE) {
            Tiles<AT_ONCE, 2> acc;
            clear(acc);
#pragma unroll 8
            for (int step = 0; step < DEPTH; ++step) {
                const u32 a[4] = {at<u32>(dy + 32 * step), 0u, at<u32>(dy + 32 * step + 16), 0u};
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    const int pair = first_pair + i * WARPS;
                    u32 b[4];
                    load_backward(b, shared, packed, step, pair < PAIRS ? pair : 0, lane);
                    const u32 one[2] = {b[0], b[1]}, two[2] = {b[2], b[3]};
                    mma_m16n8k16_bf16(acc[i][0], a, one, acc[i][0]);
                    mma_m16n8k16_bf16(acc[i][1], a, two, acc[i][1]);
                }
            }
            if (lane / 4 >= IMAGES) continue;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int pair = first_pair + i * WARPS;
                if (pair < PAIRS)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        hand_back(region<P>(shared, image), counter, first + image,
                                  pair * 16 + j * 8 + lane % 4 * 2, acc[i][j][0], acc[i][j][1]);
            }
        }
    }

    __device__ __forceinline__ static void load_backward(u32 (&b)[4], const Bytes* shared,
                                                         const Bytes* packed, int step, int pair,
                                                         int lane) {
        if constexpr (Linear::RESIDENT) {
            // Outputs that are not there have gradients of zero.
            int output = step * 16 + lane / 8 % 2 * 8 + lane % 8;
            output = output < O ? output : O - 1;
            ldmatrix_x4_trans(
                b, shared + Linear::FRAGMENTS + 16 * ((2 * pair + lane / 16) * O + output));
        } else {
            const Bytes* from = packed + Linear::PACKED + i64(2) * WIDTH * O +
                                16 * (i64(2 * step) * WIDTH + pair * 16 + lane / 4) +
                                4 * (lane % 4);
            b[0] = at<u32>(from);
            b[1] = at<u32>(from + 16 * WIDTH);
            b[2] = at<u32>(from + 128);
            b[3] = at<u32>(from + 16 * WIDTH + 128);
        }
    }

    __device__ __forceinline__ static void hand_back(Bytes* map, const u64* counter, i64 sample,
                                                     int feature, f32 even, f32 odd) {
        if constexpr (J == 0) {
            at<u32>(map + int(P::STAGED) + 2 * feature) = cvt_bf16x2(even, odd);
        } else {
            using Before = LinearLayer<P, J - 1>;
            if (feature >= Before::Linear::OUT) return;
            const u32 x = at<u32>(map + Linear::X + 2 * feature);
            if constexpr (Before::Linear::DROPOUT) {
                even *= Before::factor(counter, sample * Before::O + feature);
                odd *= Before::factor(counter, sample * Before::O + feature + 1);
            }
            u32 passed = cvt_bf16x2(even, odd);
            if constexpr (Before::Linear::RELU) passed = masked_pair(passed, x);
            if (feature >= Before::O) passed = 0;
            if (feature + 1 >= Before::O) passed &= 0xffffu;
            at<u32>(map + Before::Linear::DY + 2 * feature) = passed;
        }
    }

    // The staged gradient goes on to the last convolution.
    __device__ static void scatter(Bytes* shared) {
        if constexpr (J == 0 && P::CONVS > 0) {
            using Last = ConvGradient<P, int(P::CONVS) - 1>;
            constexpr int PIXELS = Linear::PIXELS, VECTORS = (Linear::C + 7) / 8 * PIXELS;
            for (int i = threadIdx.x; i < VECTORS * IMAGES; i += int(P::THREADS)) {
                Bytes* map = region<P>(shared, i / VECTORS);
                const int vector = i % VECTORS, pixel = vector % PIXELS;
                Last::store(map, vector / PIXELS, pixel / Last::Conv::YW, pixel % Last::Conv::YW,
                            at<uint4>(map + int(P::STAGED) + 16 * vector));
            }
        }
    }

    // Keep the gradients of the outputs for the weight's gradient.
    __device__ static void keep(Bytes* shared, Bytes* kept, i64 first, i64 n) {
        constexpr int PARTS = Linear::OUT / 8;
        for (int i = threadIdx.x; i < IMAGES * PARTS; i += int(P::THREADS)) {
            const int image = i / PARTS, part = i % PARTS;
            if (first + image < n)
                at<uint4>(kept + 2 * ((first + image) * Linear::OUT + part * 8)) =
                    at<uint4>(region<P>(shared, image) + Linear::DY + 16 * part);
        }
    }
};
