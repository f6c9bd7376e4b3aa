// The gradient of a fully connected layer's weight and bias, for onchip/reduce.cu: a matrix product
// over images, of what the step kept of each: its features and the gradients of its outputs.
//
// LINEAR_GROUPS groups of a block's warps take 32 features each, by LINEAR_ROWS tiles of 16 outputs.
// The warps of a group take a chunk of 16 images (tf32: of 8) in turns, whose rows reach shared memory
// by asynchronous copies, STAGES of them on the way. At the end their sums meet in shared memory, and
// the block settles its part of the weight.
// Limit: reading features and gradients once.
#pragma once

#include "onchip/multiply.cuh"
#include "onchip/weights.cuh"

static constexpr int WARPS = 8, FEATURES = 32;  // of a block of reduce.cu, and of its groups

template <class P>
struct Reduction;
template <class P>
__device__ __forceinline__ void await_step();

// An element of a parameter, with its states.
struct Element {
    f32 value, first, second;
};

// What a block settles of a layer, from its first feature and output on. Own says what there is:
// GROUPS groups of warps have FEATURES features each, and OUTPUTS outputs; PARTS warps of a group have
// SUMS sums each, outputs by features, and those of the bias from the BIASES-th on. Lanes have a
// feature of their group, its warps outputs in turns.
template <class P, int J, class Own>
struct LinearUpdate {
    using Linear = LinearStage<P, J>;
    static constexpr int WEIGHT = Linear::WEIGHT, BIAS = WEIGHT + (Linear::BIAS ? 1 : 0);
    static constexpr int PARTS = Own::PARTS, EACH = (Own::OUTPUTS + PARTS - 1) / PARTS;
    static_assert(FEATURES == 32, "a lane for each");
    typename Reduction<P>::Early of_weight, of_bias;
    int group, part, feature, output, index;  // of the thread's first weight
    int bias;                                 // the thread's own, or -1
    bool column;                              // whether the feature is one
    Element asked[EACH], asked_bias;

    __device__ __forceinline__ LinearUpdate(const Reduction<P>& work, int first, int out)
        : of_weight(work.template early<WEIGHT>()), of_bias(work.template early<BIAS>()) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        group = warp / PARTS, part = warp % PARTS;
        feature = first + group * FEATURES + lane, output = out + part;
        const int place = Linear::column(feature);
        column = place >= 0, index = output * Linear::I + place;
        // The first features' block has the biases.
        bias = Linear::BIAS && first == 0 && threadIdx.x < Own::OUTPUTS &&
                       out + int(threadIdx.x) < Linear::O
                   ? out + int(threadIdx.x)
                   : -1;
        asked_bias = work.template ask<BIAS>(bias);
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            asked[e] = work.template ask<WEIGHT>(there(e) ? index + e * PARTS * Linear::I : -1);
    }
    // Whether the thread has an e-th weight.
    __device__ __forceinline__ bool there(int e) const {
        return column && (Own::OUTPUTS % PARTS == 0 || part + e * PARTS < Own::OUTPUTS) &&
               output + e * PARTS < Linear::O;
    }
    // The sum of the i-th sums of PARTS parts.
    __device__ __forceinline__ static f32 total(const f32* sums) {
        f32 total = 0.0f;
#pragma unroll
        for (int i = 0; i < PARTS; ++i) total += sums[i * Own::SUMS];
        return total;
    }
    __device__ __forceinline__ void settle(const Reduction<P>& work) const {
        constexpr int UNROLL = P::AHEAD != 0 ? EACH : 1;
        const f32* sums = &at<f32>(work.shared);
        const f32* own = sums + group * PARTS * Own::SUMS + part * FEATURES + threadIdx.x % 32;
#pragma unroll UNROLL
        for (int e = 0; e < EACH; ++e) {
            if (!there(e)) continue;
            const f32 value = work.template settle<WEIGHT>(
                index + e * PARTS * Linear::I, total(own + e * PARTS * FEATURES), asked[e],
                of_weight);
            if constexpr (P::RULE != 0)
                Own::renew(work.packed, feature, output + e * PARTS, value);
        }
        if (bias >= 0)
            work.template settle<BIAS>(bias, total(sums + Own::BIASES + threadIdx.x), asked_bias,
                                       of_bias);
    }
};

template <class P, int J>
struct LinearWgrad {
    using Linear = LinearStage<P, J>;
    using F = Format<P>;
    using Number = typename F::Number;
    static constexpr bool WIDE = F::BYTES == 4;
    static constexpr int WIDTH = Linear::WIDTH, OUT = Linear::OUT, O = Linear::O;
    static constexpr int MT = int(P::LINEAR_ROWS[J]), NT = FEATURES / 8;
    static constexpr int STAGES = int(P::STAGES);  // chunks of a warp on their way
    static constexpr int O_GROUPS = (OUT / 16 + MT - 1) / MT;
    static constexpr int GROUPS = int(P::LINEAR_GROUPS), PARTS = WARPS / GROUPS;
    static constexpr int WIDE_AS = GROUPS * FEATURES;  // a block's features
    static constexpr i64 BLOCKS = i64((WIDTH + WIDE_AS - 1) / WIDE_AS) * O_GROUPS;
    static constexpr int OUTPUTS = O_GROUPS == 1 ? O : MT * 16;
    // Rows of a chunk of images: their features, their gradients. What lies between keeps banks
    // apart: 16 bytes for ldmatrix; for lanes that read rows of their own, as many as make 32 more
    // than a multiple of 128.
    static constexpr int CHUNK = F::DEPTH;
    static constexpr int X_ROW = FEATURES * F::BYTES + (WIDE ? 32 : 16);
    static constexpr int DY_ROW = WIDE ? (MT * 64 + 127) / 128 * 128 + 32 : MT * 32 + 16;
    static constexpr int STAGE = CHUNK * (X_ROW + DY_ROW);
    static constexpr int BIASES = MT * 16 * FEATURES, SUMS = BIASES + MT * 16;

    __device__ static void run(const Reduction<P>& work, int block) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int first = block / O_GROUPS * WIDE_AS, out = block % O_GROUPS * MT * 16;
        const int feature = first + warp / PARTS * FEATURES;
        const int begin = warp % PARTS, chunks = int((work.n + CHUNK - 1) / CHUNK);
        Bytes* own = work.shared + warp * STAGES * STAGE;
        Tiles<MT, NT> sum;
        f32 ones_sum[MT][4];
        clear(sum);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) ones_sum[m][i] = 0.0f;
        const LinearUpdate<P, J, LinearWgrad> update(work, first, out);
        await_step<P>();
        for (int stage = 0; stage < STAGES - 1; ++stage)
            ask(work, own, begin + stage * PARTS, stage, feature, out, lane);
        int stage = 0;
        for (int chunk = begin; chunk < chunks; chunk += PARTS) {
            ask(work, own, chunk + (STAGES - 1) * PARTS, (stage + STAGES - 1) % STAGES, feature,
                out, lane);
            cp_async_wait<STAGES - 1>();
            __syncwarp();
            const Bytes* x = own + stage * STAGE;
            multiply(sum, ones_sum, x, x + CHUNK * X_ROW, feature == 0, lane);
            __syncwarp();
            stage = (stage + 1) % STAGES;
        }
        cp_async_wait_all();
        __syncthreads();
        store(sum, ones_sum, &at<f32>(work.shared) + warp * SUMS, lane);
        __syncthreads();
        update.settle(work);
    }

    // Ask for the rows of a chunk of images; rows that are not there are zeros.
    __device__ __forceinline__ static void ask(const Reduction<P>& work, Bytes* own, int chunk,
                                               int stage, int feature, int out, int lane) {
        const Number* features = &at<Number>(work.kept) + work.n * Linear::BEFORE;
        const Number* gradients = features + work.n * WIDTH;
        Bytes* place = own + stage * STAGE;
        constexpr int EACH = F::CHANNELS, X_PARTS = FEATURES / EACH, DY_PARTS = MT * 16 / EACH;
        const int first = chunk * CHUNK, left = int(work.n) - first;  // images from the first on
        if (left > 0) {
#pragma unroll
            for (int i = lane; i < CHUNK * X_PARTS; i += 32) {
                const int row = i / X_PARTS, part = i % X_PARTS;
                const bool there = row < left && feature + part * EACH < WIDTH;
                cp_async_16_zfill(
                    place + row * X_ROW + 16 * part,
                    features + (there ? i64(first + row) * WIDTH + feature + part * EACH : 0),
                    there);
            }
#pragma unroll
            for (int i = lane; i < CHUNK * DY_PARTS; i += 32) {
                const int row = i / DY_PARTS, part = i % DY_PARTS;
                const bool there = row < left && out + part * EACH < OUT;
                cp_async_16_zfill(
                    place + CHUNK * X_ROW + row * DY_ROW + 16 * part,
                    gradients + (there ? i64(first + row) * OUT + out + part * EACH : 0), there);
            }
        }
        cp_async_commit();
    }

    __device__ __forceinline__ static void multiply(Tiles<MT, NT>& sum, f32 (&ones_sum)[MT][4],
                                                    const Bytes* x, const Bytes* dy, bool biased,
                                                    int lane) {
        u32 b[NT][2];
        load_features(b, x, lane);
        const u32 ones[2] = {F::ONES, F::ONES};
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            u32 a[4];
            load_gradients(a, dy, m, lane);
#pragma unroll
            for (int n = 0; n < NT; ++n) F::multiply(sum[m][n], a, b[n]);
            if (Linear::BIAS && biased) F::multiply(ones_sum[m], a, ones);
        }
    }

    // Of tf32 a lane reads four neighbouring features, a column of each tile; two outputs, a row of
    // each half of a tile.
    __device__ __forceinline__ static void load_features(u32 (&b)[NT][2], const Bytes* x,
                                                         int lane) {
        if constexpr (WIDE) {
            static_assert(NT == 4);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 four = at<uint4>(x + (half * 4 + lane % 4) * X_ROW + lane / 4 * 16);
                b[0][half] = four.x, b[1][half] = four.y, b[2][half] = four.z, b[3][half] = four.w;
            }
        } else {
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                u32 four[4];
                ldmatrix_x4_trans(four, x + (lane / 8 % 2 * 8 + lane % 8) * X_ROW +
                                            16 * (n + lane / 16));
                b[n][0] = four[0], b[n][1] = four[1], b[n + 1][0] = four[2], b[n + 1][1] = four[3];
            }
        }
    }
    __device__ __forceinline__ static void load_gradients(u32 (&a)[4], const Bytes* dy, int m,
                                                          int lane) {
        if constexpr (WIDE) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint2 two =
                    at<uint2>(dy + (half * 4 + lane % 4) * DY_ROW + 64 * m + lane / 4 * 8);
                a[2 * half] = two.x, a[2 * half + 1] = two.y;
            }
        } else {
            ldmatrix_x4_trans(a, dy + (lane / 16 * 8 + lane % 8) * DY_ROW + 32 * m +
                                     16 * (lane / 8 % 2));
        }
    }

    __device__ __forceinline__ static void store(const Tiles<MT, NT>& sum,
                                                 const f32 (&ones_sum)[MT][4], f32* sums,
                                                 int lane) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = m * 16 + F::filter(half, lane / 4);
                f32* place = sums + row * FEATURES;
                if constexpr (WIDE) {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        reinterpret_cast<float4*>(place)[lane % 4 * 2 + e] =
                            make_float4(sum[m][0][2 * half + e], sum[m][1][2 * half + e],
                                        sum[m][2][2 * half + e], sum[m][3][2 * half + e]);
                } else {
#pragma unroll
                    for (int n = 0; n < NT; ++n)
                        *reinterpret_cast<float2*>(place + n * 8 + lane % 4 * 2) =
                            make_float2(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
                }
                if (lane % 4 == 0) sums[BIASES + row] = ones_sum[m][2 * half];
            }
    }

    __device__ __forceinline__ static void renew(Bytes* packed, int feature, int output,
                                                 f32 value) {
        LinearWeights<P, J>::renew(packed, feature, output, value);
    }
};
