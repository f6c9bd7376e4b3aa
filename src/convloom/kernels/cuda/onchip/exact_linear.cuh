// A fully connected layer in float32, the gradient of its input, and that of its weight.
//
// Features lie as in a row of the weight. Forward, a warp takes an output and one of PARTS parts of
// its features; backward, a thread takes four neighbouring features and all outputs. Weights are
// read from device memory as they are.
// Limit: reading the weights once, each way.
#pragma once

#include "device/reduce.cuh"
#include "onchip/exact_conv.cuh"
#include "onchip/features.cuh"
#include "onchip/linear.cuh"

// Into how many parts, at most 8, to split each of `outputs` sums, so that warps are done soonest.
__host__ __device__ constexpr int best_parts(int outputs, int warps) {
    int best = 1;
    for (int parts = 2; parts <= 8; ++parts)
        if ((outputs * parts + warps - 1) / warps * best <
            (outputs * best + warps - 1) / warps * parts)
            best = parts;
    return best;
}

template <class P, int J>
struct ExactLinear {
    using Linear = LinearStage<P, J>;
    static constexpr int O = Linear::O, I = Linear::I, WARPS = int(P::THREADS) / 32;
    static constexpr int WIDE = I % 4 == 0 ? 4 : 1, VECTORS = I / WIDE;
    static_assert(int(P::IMAGES) == 1);

    static constexpr int FILTERS = ConvStage<P, P::CONVS == 0 ? 0 : int(P::CONVS) - 1>::K;
    // Of the map that the first layer reads; others read no map.
    static constexpr int PIXELS = J == 0 ? I / FILTERS : I;
    static constexpr bool BY_CHANNEL = P::CHANNELS_FIRST != 0;
    template <bool SHARED>
    using Vectors = FeatureVectors<P, SHARED, BY_CHANNEL ? FILTERS : 1, BY_CHANNEL ? 1 : FILTERS,
                                   WIDE, VECTORS>;
    using Own = Vectors<(J == 0 && P::CLUSTER > 1)>;
    static constexpr int PARTS = best_parts(O, WARPS), EACH = (Own::COUNT + PARTS - 1) / PARTS;

    __device__ static void forward(Bytes* shared, const Bytes* weights) {
        const int lane = fresh_lane(), warp = threadIdx.x / 32;
        const f32* w = &at<f32>(weights);
        const f32* x = &at<f32>(region<P>(shared, 0) + Linear::X);
        f32* sums = &at<f32>(shared + int(P::SUMS_AT));
        for (int unit = warp; unit < O * PARTS; unit += WARPS) {
            const int o = unit % O, begin = unit / O * EACH;
            const int end = begin + EACH < Own::COUNT ? begin + EACH : Own::COUNT;
            f32 sum = 0.0f;
#pragma unroll 8
            for (int i = begin + lane; i < end; i += 32) {
                const int v = Own::vector(i);
                f32 weight[WIDE], feature[WIDE];
                load_row<WIDE, WIDE>(weight, w + i64(o) * I + v * WIDE);
                load_row<WIDE, WIDE>(feature, x + v * WIDE);
#pragma unroll
                for (int e = 0; e < WIDE; ++e) sum = fmaf(weight[e], feature[e], sum);
            }
            sum = warp_sum(sum);
            if (lane == 0) sums[unit] = sum;
        }
    }

    // As LinearLayer::keep_features.
    template <int THREADS>
    __device__ __forceinline__ static void keep_features(Bytes* shared, Bytes* kept, i64 first,
                                                         i64, int thread) {
        const f32* x = &at<f32>(region<P>(shared, 0) + Linear::X);
        for (int i = thread; i < Linear::WIDTH; i += THREADS) {
            const int pixel = BY_CHANNEL ? i % PIXELS : i / FILTERS;
            if (J > 0 || keeps_pixel<P>(pixel, i >= I))
                (&at<f32>(kept))[first * Linear::WIDTH + i] = x[i];
        }
    }

    // As LinearLayer::part.
    template <int SHARES>
    __device__ __forceinline__ static f32 part(const Bytes* shared, int, int o, int share) {
        const f32* sums = &at<f32>(shared + int(P::SUMS_AT)) + o;
        return sum_of_blocks<P, J, PARTS, SHARES>(sums, O, share);
    }

    __device__ static void hand_on(Bytes* shared, const f32* bias, const u64* counter, i64 first) {
        using Next = LinearStage<P, J + 1>;
        for (int o = threadIdx.x; o < O; o += int(P::THREADS)) {
            f32 y = part<1>(shared, 0, o, 0);
            if constexpr (Linear::BIAS) y += bias[o];
            y = activated<Linear>(y);
            if constexpr (Linear::DROPOUT)
                y *= LinearLayer<P, J>::factor(counter, first * O + o);
            (&at<f32>(region<P>(shared, 0) + Next::X))[o] = y;
        }
    }

    __device__ __forceinline__ static void put_gradient(Bytes* map, int o, f32 gradient) {
        (&at<f32>(map + Linear::DY))[o] = gradient;
    }

    __device__ static void backward(Bytes* shared, const Bytes* weights, const u64* counter,
                                    i64 first) {
        Bytes* map = region<P>(shared, 0);
        const f32* w = &at<f32>(weights);
        const f32* dy = &at<f32>(map + Linear::DY);
        using Own = Vectors<J == 0>;
        for (int i = threadIdx.x; i < Own::COUNT; i += int(P::THREADS)) {
            const int v = Own::vector(i);
            f32 sum[WIDE];
#pragma unroll
            for (int e = 0; e < WIDE; ++e) sum[e] = 0.0f;
#pragma unroll 10
            for (int o = 0; o < O; ++o) {
                f32 weight[WIDE];
                load_row<WIDE, WIDE>(weight, w + i64(o) * I + v * WIDE);
#pragma unroll
                for (int e = 0; e < WIDE; ++e) sum[e] = fmaf(dy[o], weight[e], sum[e]);
            }
#pragma unroll
            for (int e = 0; e < WIDE; ++e) hand_back(map, counter, first, v * WIDE + e, sum[e]);
        }
    }

    __device__ __forceinline__ static void hand_back(Bytes* map, const u64* counter, i64 sample,
                                                     int feature, f32 gradient) {
        if constexpr (J == 0) {
            using Last = ExactConv<P, int(P::CONVS) - 1>;
            constexpr int K = Last::Conv::K, YW = Last::Conv::YW, PIXELS = Last::WINDOWS;
            const bool by_channel = P::CHANNELS_FIRST != 0;
            const int k = by_channel ? feature / PIXELS : feature % K;
            const int pixel = by_channel ? feature % PIXELS : feature / K;
            if (own_row<P>(pixel / YW)) Last::pass(map, k, pixel / YW, pixel % YW, gradient);
        } else {
            using Before = ExactLinear<P, J - 1>;
            if constexpr (Before::Linear::DROPOUT)
                gradient *= LinearLayer<P, J - 1>::factor(counter, sample * Before::O + feature);
            gradient = passed<typename Before::Linear>(
                gradient, LinearLayer<P, J - 1>::whole((&at<f32>(map + Linear::X))[feature]));
            (&at<f32>(map + Before::Linear::DY))[feature] = gradient;
        }
    }

    __device__ static void keep_gradients(Bytes* shared, Bytes* kept, i64 first, i64) {
        for (int o = threadIdx.x; o < Linear::OUT; o += int(P::THREADS))
            (&at<f32>(kept))[first * Linear::OUT + o] =
                (&at<f32>(region<P>(shared, 0) + Linear::DY))[o];
    }
};
