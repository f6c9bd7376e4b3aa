// The gradient of a fully connected layer's weight and bias, for onchip/reduce.cu: a matrix product
// over images, of what the step kept of each: its features and the gradients of its outputs.
//
// A block takes 32 features by LINEAR_ROWS tiles of 16 outputs. Warps take a chunk of 16 images (tf32:
// of 8) in turns, whose rows reach shared memory by asynchronous copies, STAGES of them on the way. At
// the end their sums meet in shared memory, and the block settles its part of the weight.
// Limit: reading features and gradients once.
#pragma once

#include "onchip/multiply.cuh"
#include "onchip/weights.cuh"

static constexpr int WARPS = 8, FEATURES = 32, ELEMENTS = 32;  // of a block of reduce.cu

template <class P>
struct Reduction;

// An element of a parameter, with its states.
struct Element {
    f32 value, first, second;
};

// Which element of a parameter a sum is, or -1: none; and its feature, as it lies, and output.
struct LinearPlace {
    bool bias;
    int index, feature, output;
};

// What a thread of the block that begins at a feature and an output settles of a layer: every 256th
// of Own::SUMS sums, each in as many parts as there are warps. Own says where they belong.
template <class P, int J, class Own>
struct LinearUpdate {
    using Linear = LinearStage<P, J>;
    static constexpr int WEIGHT = Linear::WEIGHT, BIAS = WEIGHT + (Linear::BIAS ? 1 : 0);
    static constexpr int THREADS = WARPS * 32, EACH = (Own::SUMS + THREADS - 1) / THREADS;
    typename Reduction<P>::Early of_weight, of_bias;
    Element asked[EACH];

    __device__ __forceinline__ LinearUpdate(const Reduction<P>& work, int feature, int out)
        : of_weight(work.template early<WEIGHT>()), of_bias(work.template early<BIAS>()) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const LinearPlace place = Own::place(threadIdx.x + e * THREADS, feature, out);
            asked[e] = place.bias ? work.template ask<BIAS>(place.index)
                                  : work.template ask<WEIGHT>(place.index);
        }
    }
    __device__ __forceinline__ void settle(const Reduction<P>& work, int feature, int out) const {
        const f32* sums = &at<f32>(work.shared);
        constexpr int UNROLL = P::AHEAD != 0 ? EACH : 1;
#pragma unroll UNROLL
        for (int e = 0; e < EACH; ++e) {
            const int i = threadIdx.x + e * THREADS;
            const LinearPlace place = Own::place(i, feature, out);
            if (place.index < 0) continue;
            f32 total = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) total += sums[warp * Own::SUMS + i];
            if (place.bias) {
                work.template settle<BIAS>(place.index, total, asked[e], of_bias);
            } else {
                const f32 value =
                    work.template settle<WEIGHT>(place.index, total, asked[e], of_weight);
                if constexpr (P::RULE != 0) Own::renew(work.packed, place, value);
            }
        }
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
    static constexpr i64 BLOCKS = i64((WIDTH + FEATURES - 1) / FEATURES) * O_GROUPS;
    // Rows of a chunk of images: their features, their gradients. What lies between keeps banks
    // apart: 16 bytes for ldmatrix; for lanes that read rows of their own, as many as make 32 more
    // than a multiple of 128.
    static constexpr int CHUNK = F::DEPTH;
    static constexpr int X_ROW = FEATURES * F::BYTES + (WIDE ? 32 : 16);
    static constexpr int DY_ROW = WIDE ? (MT * 64 + 127) / 128 * 128 + 32 : MT * 32 + 16;
    static constexpr int STAGE = CHUNK * (X_ROW + DY_ROW);
    static constexpr int TILE = MT * 16 * FEATURES, SUMS = TILE + MT * 16;

    __device__ static void run(const Reduction<P>& work, int block) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int feature = block / O_GROUPS * FEATURES, out = block % O_GROUPS * MT * 16;
        const i64 chunks = (work.n + CHUNK - 1) / CHUNK;
        Bytes* own = work.shared + warp * STAGES * STAGE;
        Tiles<MT, NT> sum;
        f32 ones_sum[MT][4];
        clear(sum);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) ones_sum[m][i] = 0.0f;
        for (int stage = 0; stage < STAGES - 1; ++stage)
            ask(work, own, warp + i64(stage) * WARPS, stage, feature, out, lane);
        const LinearUpdate<P, J, LinearWgrad> update(work, feature, out);
        int stage = 0;
        for (i64 chunk = warp; chunk < chunks; chunk += WARPS) {
            ask(work, own, chunk + i64(STAGES - 1) * WARPS, (stage + STAGES - 1) % STAGES, feature,
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
        update.settle(work, feature, out);
    }

    // Ask for the rows of a chunk of images; rows that are not there are zeros.
    __device__ __forceinline__ static void ask(const Reduction<P>& work, Bytes* own, i64 chunk,
                                               int stage, int feature, int out, int lane) {
        const Number* features = &at<Number>(work.kept) + work.n * Linear::BEFORE;
        const Number* gradients = features + work.n * WIDTH;
        Bytes* place = own + stage * STAGE;
        constexpr int EACH = F::CHANNELS, X_PARTS = FEATURES / EACH, DY_PARTS = MT * 16 / EACH;
        if (chunk * CHUNK < work.n) {
#pragma unroll
            for (int i = lane; i < CHUNK * X_PARTS; i += 32) {
                const int row = i / X_PARTS, part = i % X_PARTS;
                const i64 image = chunk * CHUNK + row;
                const bool there = image < work.n && feature + part * EACH < WIDTH;
                cp_async_16_zfill(
                    place + row * X_ROW + 16 * part,
                    there ? features + image * WIDTH + feature + part * EACH : features, there);
            }
#pragma unroll
            for (int i = lane; i < CHUNK * DY_PARTS; i += 32) {
                const int row = i / DY_PARTS, part = i % DY_PARTS;
                const i64 image = chunk * CHUNK + row;
                const bool there = image < work.n && out + part * EACH < OUT;
                cp_async_16_zfill(place + CHUNK * X_ROW + row * DY_ROW + 16 * part,
                                  there ? gradients + image * OUT + out + part * EACH : gradients,
                                  there);
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
                if (lane % 4 == 0) sums[TILE + row] = ones_sum[m][2 * half];
            }
    }

    __device__ __forceinline__ static LinearPlace place(int i, int feature, int out) {
        const bool bias = i >= TILE;
        const int own = feature + i % FEATURES, output = out + (bias ? i - TILE : i / FEATURES);
        const int column = bias ? 0 : Linear::column(own);
        const bool there =
            i < SUMS && output < O && column >= 0 && (!bias || (Linear::BIAS && feature == 0));
        return {bias, !there ? -1 : bias ? output : output * Linear::I + column, own, output};
    }
    __device__ __forceinline__ static void renew(Bytes* packed, const LinearPlace& place,
                                                 f32 value) {
        LinearWeights<P, J>::renew(packed, place.feature, place.output, value);
    }
};
