// The gradients of a convolution's filters and bias in float32, summed over all images of a block
// in registers.
//
// A thread takes TK filters, one channel and one filter row: S sums each. It walks rows of the
// output that are the block's, four pixels at a time: TK vectors of gradients, which threads with the same filters read
// at once, and a window of inputs. WSPLIT threads share the rows. At the end their sums meet in
// shared memory and leave in KCRS order, then the bias.
// Limit: fused multiply-adds, with one read of shared memory for about seven of them.
#pragma once

#include "onchip/exact_conv.cuh"
#include "onchip/strip.cuh"

template <class P, int I>
struct ExactWgrad {
    using Conv = ConvStage<P, I>;
    static constexpr int C = Conv::C, K = Conv::K, R = Conv::R, S = Conv::S;
    static constexpr int TK = Conv::WMT;
    using Own = Strip<P, I>;
    static constexpr int SPLIT = Conv::WSPLIT, THREADS = int(P::THREADS);
    static constexpr int UNITS = (K + TK - 1) / TK * C * R, JOBS = UNITS * SPLIT;
    static constexpr int EACH = (JOBS + THREADS - 1) / THREADS;
    static constexpr int K_EACH = (K + THREADS - 1) / THREADS;  // biases of a thread
    static constexpr int BIAS_AT = K * C * R * S, SIZE = BIAS_AT + K;

    // Threads that share the rows of one bias.
    static constexpr int PARTS = K < THREADS ? THREADS / K : 1;

    f32 sum[EACH][TK][S], bias[K_EACH];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < EACH * TK * S; ++i) sum[i / S / TK][i / S % TK][i % S] = 0.0f;
#pragma unroll
        for (int e = 0; e < K_EACH; ++e) bias[e] = 0.0f;
    }

    __device__ __forceinline__ void add(Bytes* shared, int buffer) {
        const Rows rows = Own::products(Own::rank());
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int job = threadIdx.x + e * THREADS;
            if (job >= JOBS) continue;
            const int unit = job % UNITS, r = unit % R, c = unit / R % C, k = unit / (R * C) * TK;
            for (int image = 0; image < int(P::IMAGES); ++image) {
                Bytes* map = region<P>(shared, image);
                const f32* x = &at<f32>(input_of<P, I>(map, buffer)) + c * Conv::XPLANE +
                               (r - Conv::PADH) * Conv::XPITCH - Conv::PADW;
                for (int p = rows.begin + job / UNITS; p < rows.end; p += SPLIT)
                    add_row(&at<f32>(map + Conv::DY) + p * Conv::UH * Conv::DYPITCH,
                            x + p * Conv::UH * Conv::XPITCH, k, sum[e]);
            }
        }
        if constexpr (Conv::BIAS)
            for (int image = 0; image < int(P::IMAGES); ++image)
                add_bias(region<P>(shared, image), rows);
    }

    // A thread takes one of PARTS parts of the rows of a filter.
    __device__ __forceinline__ void add_bias(const Bytes* map, const Rows& rows) {
#pragma unroll
        for (int e = 0; e < K_EACH; ++e) {
            const int i = threadIdx.x + e * THREADS, k = i % K, part = i / K;
            if (k + part * K >= K * PARTS) continue;
            const f32* dy = &at<f32>(map + Conv::DY) + k * Conv::DYPLANE;
            for (int p = rows.begin + part; p < rows.end; p += PARTS)
#pragma unroll 4
                for (int q = 0; q < Conv::OW; ++q)
                    bias[e] += dy[p * Conv::UH * Conv::DYPITCH + q * Conv::UW];
        }
    }

    // Pixels behind the last of a row have gradients of zero.
    __device__ __forceinline__ static void add_row(const f32* dy, const f32* x, int k,
                                                   f32 (&sum)[TK][S]) {
        constexpr int UW = Conv::UW, WIDTH = 3 * UW + S;
#pragma unroll 2
        for (int q = 0; q < Conv::OW; q += 4) {
            f32 seen[WIDTH];
            load_row<WIDTH, aligned_to(4, Conv::PADW)>(seen, x + q * UW);
#pragma unroll
            for (int e = 0; e < TK; ++e) {
                // A filter that is not there has the gradient of another; it is not used.
                const int filter = k + e < K ? k + e : k;
                f32 gradient[3 * UW + 1];
                load_row<3 * UW + 1, 4>(gradient, dy + filter * Conv::DYPLANE + q * UW);
#pragma unroll
                for (int j = 0; j < 4; ++j)
#pragma unroll
                    for (int s = 0; s < S; ++s)
                        sum[e][s] = fmaf(gradient[j * UW], seen[j * UW + s], sum[e][s]);
            }
        }
    }

    // Put the threads' sums into `scratch`, shared memory for SPLIT * SIZE floats and a thread's
    // biases each.
    __device__ __forceinline__ void put(f32* scratch) const {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int job = threadIdx.x + e * THREADS;
            if (job >= JOBS) continue;
            const int unit = job % UNITS, r = unit % R, c = unit / R % C, k = unit / (R * C) * TK;
            f32* own = scratch + job / UNITS * SIZE;
#pragma unroll
            for (int f = 0; f < TK; ++f) {
                if (k + f >= K) continue;
#pragma unroll
                for (int s = 0; s < S; ++s)
                    own[(((k + f) * C + c) * R + r) * S + s] = sum[e][f][s];
            }
        }
        f32* biases = scratch + SPLIT * SIZE;
        if constexpr (Conv::BIAS) {
#pragma unroll
            for (int e = 0; e < K_EACH; ++e)
                if (threadIdx.x + e * THREADS < K * PARTS)
                    biases[threadIdx.x + e * THREADS] = bias[e];
        }
    }
    // Add them up and write the block's.
    __device__ __forceinline__ static void leave(const f32* scratch, f32* slab) {
        const f32* biases = scratch + SPLIT * SIZE;
        for (int i = threadIdx.x; i < (Conv::BIAS ? SIZE : BIAS_AT); i += THREADS) {
            const bool of_bias = i >= BIAS_AT;
            const f32* first = of_bias ? biases + i - BIAS_AT : scratch + i;
            const int parts = of_bias ? PARTS : SPLIT, step = of_bias ? K : SIZE;
            f32 total = first[0];
            for (int part = 1; part < parts; ++part) total += first[part * step];
            slab[i] = total;
        }
    }

    // Which element of a parameter element `i` of the slab is.
    struct Place {
        bool bias;
        int index, k, c, r, s;
    };
    __device__ static Place place(int i) {
        if (i >= BIAS_AT) return {true, Conv::BIAS ? i - BIAS_AT : -1, i - BIAS_AT, 0, 0, 0};
        const int s = i % S, r = i / S % R, c = i / (S * R) % C, k = i / (S * R * C);
        return {false, Conv::ROW ? i : ((k * R + r) * S + s) * C + c, k, c, r, s};
    }
};
