// Weights as the step reads them. They are kept in device memory, packed, and copied to the front
// of a block's shared memory as far as they fit there; pack.cu makes them, reduce.cu keeps them
// new.
//
// A convolution's are fragments: for each step of 16 products (tf32: of 8) and each tile of 8
// outputs, what the lanes of a warp hold of the matrix B of an mma, eight bytes a lane.
//
// Products run over a filter's rows, then its columns, then planes of channels; a step takes two
// planes, a row that has an odd number of them ends with zeros. The first convolution of few channels
// takes its products in KCRS order instead, step after step, with no regard to planes.
#pragma once

#include "onchip/shape.cuh"

// Steps of a filter row of S columns of `planes` planes.
__host__ __device__ constexpr int row_steps(int s, int planes) { return (s * planes + 1) / 2; }

template <class P, int I>
struct ConvWeights {
    using Conv = ConvStage<P, I>;
    using F = Format<P>;
    static constexpr int C = Conv::C, K = Conv::K, R = Conv::R, S = Conv::S;
    static constexpr int CHANNELS = F::CHANNELS, EACH = F::DEPTH / 4;  // products of a lane
    static constexpr int TILES = Conv::NT * Conv::N_GROUPS;
    static constexpr int DEPTH = C * R * S;  // products, if GATHER
    static constexpr int STEPS =
        Conv::GATHER ? (DEPTH + F::DEPTH - 1) / F::DEPTH : R * row_steps(S, Conv::CP);
    static constexpr int D_TILES = Conv::DNT * Conv::DN_GROUPS;
    static constexpr int D_STEPS = R * row_steps(S, Conv::KP);

    __device__ __forceinline__ static f32 weight(const f32* w, int k, int c, int r, int s) {
        return w[Conv::ROW ? ((k * C + c) * R + r) * S + s : ((k * R + r) * S + s) * C + c];
    }

    // Product `e` of a step of the output, for filter k.
    __device__ __forceinline__ static f32 forward(const f32* w, int step, int e, int k) {
        if (k >= K) return 0.0f;
        if constexpr (Conv::GATHER) {
            const int i = step * F::DEPTH + e;
            return i < DEPTH ? weight(w, k, i / (R * S), i / S % R, i % S) : 0.0f;
        } else {
            constexpr int OF_ROW = row_steps(S, Conv::CP);
            const int slice = step % OF_ROW * 2 + e / CHANNELS;
            const int c = slice % Conv::CP * CHANNELS + e % CHANNELS;
            if (slice >= S * Conv::CP || c >= C) return 0.0f;
            return weight(w, k, c, step / OF_ROW, slice / Conv::CP);
        }
    }
    // Product `e` of a step of the input's gradient, for channel c.
    __device__ __forceinline__ static f32 backward(const f32* w, int step, int e, int c) {
        constexpr int OF_ROW = row_steps(S, Conv::KP);
        const int slice = step % OF_ROW * 2 + e / CHANNELS;
        const int k = slice % Conv::KP * CHANNELS + e % CHANNELS;
        if (slice >= S * Conv::KP || k >= K || c >= C) return 0.0f;
        return weight(w, k, c, step / OF_ROW, slice / Conv::KP);
    }

    static constexpr int FORWARD = STEPS * TILES * 32;
    static constexpr int ITEMS = FORWARD + (I > 0 && P::MODE == 2 ? D_STEPS * D_TILES * 32 : 0);

    // Put the i-th 8 bytes in place.
    __device__ __forceinline__ static void pack(Bytes* packed, const f32* w, int i) {
        if (i < FORWARD) {
            pack<true, Conv::NT, TILES>(packed + Conv::FRAGMENTS, w, i);
        } else {
            pack<false, Conv::DNT, D_TILES>(packed + Conv::TRANSPOSED, w, i - FORWARD);
        }
    }
    template <bool FORWARD, int NT, int TILES>
    __device__ __forceinline__ static void pack(Bytes* place, const f32* w, int i) {
        const int step = i / (TILES * 32), tile = i / 32 % TILES, lane = i % 32;
        at<uint2>(place + 256 * TILES * step + fragment_at<NT>(tile, lane)) =
            fragment<FORWARD>(w, step, tile, lane);
    }

    // What lane `lane` holds of the fragment.
    template <bool FORWARD>
    __device__ __forceinline__ static uint2 fragment(const f32* w, int step, int tile, int lane) {
        const int out = tile * 8 + lane / 4;
        f32 part[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int product = F::product(lane, i);
            part[i] = FORWARD ? forward(w, step, product, out) : backward(w, step, product, out);
        }
        return F::fragment(part);
    }

    // Where weight (k, c, r, s) lies in a fragment: bytes from the first one of its kind.
    template <int NT, int TILES>
    __device__ __forceinline__ static int byte(int step, int e, int out) {
        const int in_tile = out % 8 * 32 + F::byte(e);
        return 256 * TILES * step + fragment_at<NT>(out / 8, in_tile / 8) + in_tile % 8;
    }
    __device__ __forceinline__ static void renew(Bytes* packed, int k, int c, int r, int s,
                                                 f32 value) {
        using Number = typename F::Number;
        const Number rounded = F::of(value);
        int step, e;
        if constexpr (Conv::GATHER) {
            const int i = (c * R + r) * S + s;
            step = i / F::DEPTH, e = i % F::DEPTH;
        } else {
            const int slice = s * Conv::CP + c / CHANNELS;
            step = r * row_steps(S, Conv::CP) + slice / 2;
            e = slice % 2 * CHANNELS + c % CHANNELS;
        }
        at<Number>(packed + Conv::FRAGMENTS + byte<Conv::NT, TILES>(step, e, k)) = rounded;
        if constexpr (I > 0) {
            const int slice = s * Conv::KP + k / CHANNELS;
            step = r * row_steps(S, Conv::KP) + slice / 2;
            e = slice % 2 * CHANNELS + k % CHANNELS;
            at<Number>(packed + Conv::TRANSPOSED + byte<Conv::DNT, D_TILES>(step, e, c)) = rounded;
        }
    }
};

// A fully connected layer's weights: planes of eight features (tf32: of four), 16 bytes an output,
// at FRAGMENTS; if they do not stay in shared memory, at PACKED, and behind them planes of as many
// outputs, 16 bytes a feature.
template <class P, int J>
struct LinearWeights {
    using Linear = LinearStage<P, J>;
    using F = Format<P>;
    static constexpr int O = Linear::O, WIDTH = Linear::WIDTH, CHANNELS = F::CHANNELS;
    static constexpr int FORWARD = WIDTH / CHANNELS * O;  // of 16 bytes
    static constexpr int BACKWARD = Linear::RESIDENT ? 0 : Linear::OUT / CHANNELS * WIDTH;
    static constexpr i64 AT = Linear::RESIDENT ? i64(Linear::FRAGMENTS) : Linear::PACKED;

    __device__ __forceinline__ static f32 weight(const f32* w, int feature, int output) {
        const int column = Linear::column(feature);
        return column >= 0 && output < O ? w[i64(output) * Linear::I + column] : 0.0f;
    }

    // The i-th 16 bytes.
    __device__ __forceinline__ static uint4 pack(const f32* w, int i) {
        f32 part[CHANNELS];
#pragma unroll
        for (int e = 0; e < CHANNELS; ++e)
            part[e] = i < FORWARD
                          ? weight(w, i / O * CHANNELS + e, i % O)
                          : weight(w, (i - FORWARD) % WIDTH, (i - FORWARD) / WIDTH * CHANNELS + e);
        return F::vector(part);
    }

    __device__ __forceinline__ static void renew(Bytes* packed, int feature, int output,
                                                 f32 value) {
        Bytes* place = packed + AT;
        using Number = typename F::Number;
        const Number rounded = F::of(value);
        at<Number>(place + 16 * (feature / CHANNELS * O + output) +
                   F::BYTES * (feature % CHANNELS)) = rounded;
        if constexpr (!Linear::RESIDENT)
            at<Number>(place + 16 * (i64(FORWARD) + output / CHANNELS * WIDTH + feature) +
                       F::BYTES * (output % CHANNELS)) = rounded;
    }
};
