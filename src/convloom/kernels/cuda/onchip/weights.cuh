// Weights as fragments: for each step of 16 products and each tile of 8 outputs, what the lanes of
// a warp hold of the matrix B of mma.m16n8k16, eight bytes a lane.
//
// Products run over a filter's rows, then its columns, then planes of eight channels; a step takes
// two planes, a row that has an odd number of them ends with zeros. The first convolution of few
// channels takes its products in KCRS order instead, 16 after 16, with no regard to planes.
#pragma once

#include "onchip/shape.cuh"

// Steps of a filter row of S columns of `planes` planes.
__host__ __device__ constexpr int row_steps(int s, int planes) { return (s * planes + 1) / 2; }

template <class P, int I>
struct ConvWeights {
    using Conv = ConvStage<P, I>;
    static constexpr int C = Conv::C, K = Conv::K, R = Conv::R, S = Conv::S;
    static constexpr int TILES = Conv::NT * Conv::N_GROUPS;
    static constexpr int DEPTH = C * R * S;  // products, if GATHER
    static constexpr int STEPS =
        Conv::GATHER ? (DEPTH + 15) / 16 : R * row_steps(S, Conv::CP);
    static constexpr int D_TILES = Conv::DNT * Conv::DN_GROUPS, D_STEPS = R * row_steps(S, Conv::KP);

    __device__ __forceinline__ static f32 weight(const f32* w, int k, int c, int r, int s) {
        return w[Conv::ROW ? ((k * C + c) * R + r) * S + s : ((k * R + r) * S + s) * C + c];
    }

    // Product `e` of a step of the output, for filter k.
    __device__ __forceinline__ static f32 forward(const f32* w, int step, int e, int k) {
        if (k >= K) return 0.0f;
        if constexpr (Conv::GATHER) {
            const int i = step * 16 + e;
            return i < DEPTH ? weight(w, k, i / (R * S), i / S % R, i % S) : 0.0f;
        } else {
            constexpr int EACH = row_steps(S, Conv::CP);
            const int slice = step % EACH * 2 + e / 8, c = slice % Conv::CP * 8 + e % 8;
            if (slice >= S * Conv::CP || c >= C) return 0.0f;
            return weight(w, k, c, step / EACH, slice / Conv::CP);
        }
    }
    // Product `e` of a step of the input's gradient, for channel c.
    __device__ __forceinline__ static f32 backward(const f32* w, int step, int e, int c) {
        constexpr int EACH = row_steps(S, Conv::KP);
        const int slice = step % EACH * 2 + e / 8, k = slice % Conv::KP * 8 + e % 8;
        if (slice >= S * Conv::KP || k >= K || c >= C) return 0.0f;
        return weight(w, k, c, step / EACH, slice / Conv::KP);
    }

    // What lane `lane` holds of the fragment.
    template <bool FORWARD>
    __device__ __forceinline__ static uint2 fragment(const f32* w, int step, int tile, int lane) {
        const int out = tile * 8 + lane / 4, e = lane % 4 * 2;
        f32 part[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int product = e + i % 2 + i / 2 * 8;
            part[i] = FORWARD ? forward(w, step, product, out) : backward(w, step, product, out);
        }
        return make_uint2(cvt_bf16x2(part[0], part[1]), cvt_bf16x2(part[2], part[3]));
    }

    // Put all fragments into shared memory; the whole block takes part.
    __device__ static void load(Bytes* shared, const f32* w, bool backward) {
        for (int i = threadIdx.x; i < STEPS * TILES * 32; i += int(P::THREADS))
            at<uint2>(shared + Conv::FRAGMENTS + 8 * i) =
                fragment<true>(w, i / (TILES * 32), i / 32 % TILES, i % 32);
        if constexpr (I > 0) {
            if (backward)
                for (int i = threadIdx.x; i < D_STEPS * D_TILES * 32; i += int(P::THREADS))
                    at<uint2>(shared + Conv::TRANSPOSED + 8 * i) =
                        fragment<false>(w, i / (D_TILES * 32), i / 32 % D_TILES, i % 32);
        }
    }
};

// Eight neighbouring features, as they lie, of one output's weights.
template <class Linear>
__device__ __forceinline__ uint4 linear_weights(const f32* w, int plane, int output) {
    f32 part[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const int column = Linear::column(plane * 8 + e);
        part[e] = column >= 0 ? w[i64(output) * Linear::I + column] : 0.0f;
    }
    return make_uint4(cvt_bf16x2(part[0], part[1]), cvt_bf16x2(part[2], part[3]),
                      cvt_bf16x2(part[4], part[5]), cvt_bf16x2(part[6], part[7]));
}

// A fully connected layer's weights in shared memory: planes of eight features, 16 bytes an output.
template <class P, int J>
__device__ void load_linear_weights(Bytes* shared, const f32* w) {
    using Linear = LinearStage<P, J>;
    if constexpr (Linear::RESIDENT) {
        // Neighbouring threads take neighbouring features of one output, as they lie in memory.
        constexpr int PLANES = Linear::WIDTH / 8;
        for (int i = threadIdx.x; i < PLANES * Linear::O; i += int(P::THREADS)) {
            const int plane = i % PLANES, output = i / PLANES;
            at<uint4>(shared + Linear::FRAGMENTS + 16 * (plane * Linear::O + output)) =
                linear_weights<Linear>(w, plane, output);
        }
    }
}
