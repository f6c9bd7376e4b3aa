// The tasks of the blocks of onchip/reduce.cu, which says what they are.
#pragma once

#include "device/reduce.cuh"
#include "device/update.cuh"
#include "onchip/kit.cuh"
#include "onchip/linear_wgrad.cuh"

// A parameter's tensors and rates.
struct Parameter {
    f32 *value, *gradient, *first, *second;
    f32 rate, decay;
};

struct NoRule {
    __device__ NoRule(const f64*, const f64*, f32, f32) {}
};

// What a block works with.
template <class P>
struct Reduction {
    const f32* slab;
    const Bytes* kept;
    const f64* hyper;
    i64 slabs, n;
    Parameter parameter[12];
    Bytes* packed;
    Bytes* shared;

    using Rule = typename Pick<P::RULE == 1, SgdRule<P>,
                               typename Pick<P::RULE == 2, AdamwRule<P>, NoRule>::Type>::Type;
    template <int NUMBER>
    __device__ __forceinline__ Element element(int index) const {
        const Parameter& one = parameter[NUMBER];
        if constexpr (P::RULE == 0) return {};
        return {one.value[index], one.first[index], P::RULE == 2 ? one.second[index] : 0.0f};
    }

    // If AHEAD all that an update needs besides the gradient is asked for before that is known: what
    // elements of a parameter share, and the element `index`, or none where that is negative.
    using Early = typename Pick<P::AHEAD != 0, Rule, NoRule>::Type;
    template <int NUMBER>
    __device__ __forceinline__ Early early() const {
        return Early(hyper, nullptr, parameter[NUMBER].rate, parameter[NUMBER].decay);
    }
    template <int NUMBER>
    __device__ __forceinline__ Element ask(int index) const {
        if constexpr (P::AHEAD == 0) return {};
        return index >= 0 ? element<NUMBER>(index) : Element{};
    }

    // Element `index` of parameter NUMBER has this gradient; returns its new value. What is `asked` and
    // `early` counts if AHEAD.
    template <int NUMBER>
    __device__ __forceinline__ f32 settle(int index, f32 gradient, const Element& asked,
                                          const Early& early) const {
        const Parameter& one = parameter[NUMBER];
        one.gradient[index] = gradient;
        if constexpr (P::AHEAD != 0)
            return update(one, index, gradient, asked, early);
        else
            return update(one, index, gradient, element<NUMBER>(index),
                          Rule(hyper, nullptr, one.rate, one.decay));
    }
    __device__ __forceinline__ static f32 update(const Parameter& one, int index, f32 gradient,
                                                 Element now, const Rule& rule) {
        if constexpr (P::RULE == 0) return 0.0f;
        if constexpr (P::RULE == 1) {
            rule.update(now.value, gradient, now.first);
        } else if constexpr (P::RULE == 2) {
            rule.update(now.value, gradient, now.first, now.second);
            one.second[index] = now.second;
        }
        if constexpr (P::RULE != 0) {
            one.value[index] = now.value;
            one.first[index] = now.first;
        }
        return now.value;
    }
};

// Convolutions from the I-th on; `block` counts from the first block of this one.
template <class P, int I>
__device__ __forceinline__ void reduce_convs(const Reduction<P>& work, i64& block, i64 before) {
    if constexpr (I < P::CONVS) {
        using Gradient = typename Kit<P>::template Wgrad<I>;
        using Conv = ConvStage<P, I>;
        constexpr i64 BLOCKS = (Gradient::SIZE + ELEMENTS - 1) / ELEMENTS;
        if (block >= 0 && block < BLOCKS) {
            f32* sums = &at<f32>(work.shared);
            const int i = int(block) * ELEMENTS + threadIdx.x % 32, group = threadIdx.x / 32;
            f32 sum = 0.0f;
            const bool settles = group == 0 && i < Gradient::SIZE;
            const typename Gradient::Place place = Gradient::place(settles ? i : 0);
            const bool there = settles && place.index >= 0;
            constexpr int WEIGHT = Conv::WEIGHT, BIAS = WEIGHT + (Conv::BIAS ? 1 : 0);
            const int index = there ? place.index : -1;
            const Element asked = place.bias ? work.template ask<BIAS>(index)
                                             : work.template ask<WEIGHT>(index);
            const auto of_weight = work.template early<WEIGHT>();
            const auto of_bias = work.template early<BIAS>();
            if (i < Gradient::SIZE) {
#pragma unroll 4
                for (i64 s = group; s < work.slabs; s += WARPS)
                    sum += work.slab[s * P::SLAB + before + i];
            }
            sums[threadIdx.x] = sum;
            __syncthreads();
            if (there) {
#pragma unroll
                for (int g = 1; g < WARPS; ++g) sum += sums[g * 32 + threadIdx.x];
                if (place.bias) {
                    work.template settle<BIAS>(index, sum, asked, of_bias);
                } else {
                    const f32 value =
                        work.template settle<WEIGHT>(index, sum, asked, of_weight);
                    if constexpr (P::RULE != 0)
                        Kit<P>::template Weights<I>::renew(work.packed, place.k, place.c,
                                                           place.r, place.s, value);
                }
            }
        }
        block -= BLOCKS;
        reduce_convs<P, I + 1>(work, block, before + Gradient::SIZE);
    }
}

// The same in float32: a thread takes a feature and ROWS outputs; warps share the images, whose
// features they ask for one round ahead.
template <class P, int J>
struct ExactLinearWgrad {
    using Linear = LinearStage<P, J>;
    static constexpr int WIDTH = Linear::WIDTH, OUT = Linear::OUT, O = Linear::O, ROWS = 16;
    static constexpr int O_GROUPS = OUT / ROWS, SUMS = (ROWS + 1) * FEATURES;
    static constexpr i64 BLOCKS = i64((WIDTH + FEATURES - 1) / FEATURES) * O_GROUPS;

    // Ask for a feature of the images from `first` on.
    __device__ __forceinline__ static void ask(f32 (&value)[128 / WARPS], const f32* own, i64 first,
                                               i64 n) {
#pragma unroll
        for (int e = 0; e < 128 / WARPS; ++e)
            value[e] = first + e < n ? own[(first + e) * WIDTH] : 0.0f;
    }

    // Images that a block takes at a time, and each warp of them.
    static constexpr int IMAGES = 128, OWN = IMAGES / WARPS;

    __device__ static void run(const Reduction<P>& work, int block) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int begin = block / O_GROUPS * FEATURES, out = block % O_GROUPS * ROWS;
        const f32* x = &at<f32>(work.kept) + work.n * Linear::BEFORE;
        const f32* dy = x + work.n * WIDTH + out;
        const f32* own = x + (begin + lane < WIDTH ? begin + lane : 0);
        f32* staged = &at<f32>(work.shared);
        f32 sum[ROWS], bias = 0.0f, value[OWN];
#pragma unroll
        for (int o = 0; o < ROWS; ++o) sum[o] = 0.0f;
        ask(value, own, warp * OWN, work.n);
        const LinearUpdate<P, J, ExactLinearWgrad> update(work, begin, out);
        for (i64 first = 0; first < work.n; first += IMAGES) {
            __syncthreads();
            for (int i = threadIdx.x; i < IMAGES * ROWS; i += WARPS * 32)
                staged[i] = first + i / ROWS < work.n
                                ? dy[(first + i / ROWS) * OUT + i % ROWS]
                                : 0.0f;
            __syncthreads();
            f32 now[OWN];
#pragma unroll
            for (int e = 0; e < OWN; ++e) now[e] = value[e];
            ask(value, own, first + IMAGES + warp * OWN, work.n);
#pragma unroll
            for (int e = 0; e < OWN; ++e) {
                const f32* row = staged + (warp * OWN + e) * ROWS;
                f32 gradient[ROWS];
                load_row<ROWS, 4>(gradient, row);
                if (Linear::BIAS && begin == 0) bias += row[lane % ROWS];
#pragma unroll
                for (int o = 0; o < ROWS; ++o) sum[o] = fmaf(gradient[o], now[e], sum[o]);
            }
        }
        __syncthreads();
        f32* sums = &at<f32>(work.shared);
#pragma unroll
        for (int o = 0; o < ROWS; ++o) sums[warp * SUMS + o * FEATURES + lane] = sum[o];
        sums[warp * SUMS + ROWS * FEATURES + lane] = bias;
        __syncthreads();
        update.settle(work, begin, out);
    }

    __device__ __forceinline__ static LinearPlace place(int i, int begin, int out) {
        const bool bias = i >= ROWS * FEATURES;
        const int column = begin + i % FEATURES;
        const int output = out + (bias ? i % FEATURES : i / FEATURES);
        const bool there = i < SUMS && (bias ? Linear::BIAS && begin == 0 && i % FEATURES < ROWS
                                             : column < Linear::I);
        return {bias, !there || output >= O ? -1 : bias ? output : output * Linear::I + column,
                column, output};
    }
    // Matrices are read as they are.
    __device__ __forceinline__ static void renew(Bytes*, const LinearPlace&, f32) {}
};

template <class P, int J>
__device__ __forceinline__ void reduce_linears(const Reduction<P>& work, i64& block) {
    if constexpr (J < P::LINEARS) {
        using Gradient =
            typename Pick<P::EXACT != 0, ExactLinearWgrad<P, J>, LinearWgrad<P, J>>::Type;
        if (block >= 0 && block < Gradient::BLOCKS) Gradient::run(work, int(block));
        block -= Gradient::BLOCKS;
        reduce_linears<P, J + 1>(work, block);
    }
}

#define ONCHIP_PARAMETER(i) f32 *p##i, f32 *g##i, f32 *s##i, f32 *t##i, f32 rate##i, f32 decay##i
#define ONCHIP_GIVEN(i) {p##i, g##i, s##i, t##i, rate##i, decay##i}
#define ONCHIP_OWN(i) {own(p##i), own(g##i), own(s##i), own(t##i), rate##i, decay##i}

// What is told of a batch, and where; the latter half if FED (fed.py).
struct Reported {
    const f32* losses;
    const i32* ranks;
    f32* loss;
    i32* correct;
    const f64* rates;
    f64* own_hyper;
    u64* counter;
    u64* clock;
    i64 place;
    f32* all_losses;
    i32* all_corrects;
    // Members that share a row of the tables of losses and right answers, and which this is.
    i64 members = 1, member = 0;

    __device__ __forceinline__ i64 row() const { return i64(clock[2]) + place; }
    // The step's hyper values: those of its row if FED.
    template <class P>
    __device__ __forceinline__ const f64* hyper(const f64* given) const {
        if constexpr (P::FED != 0) return rates + row() * P::FED_RATES;
        else return given;
    }
    // Leave the sums, and if FED file them and go on to the next row.
    template <class P>
    __device__ __forceinline__ void leave(f32 mean, i32 first, i32 top, const f64* hyper) const {
        *loss = mean;
        correct[0] = first;
        correct[1] = top;
        if constexpr (P::FED != 0) {
            const i64 now = row(), place = now * members + member;
            all_losses[place] = mean;
            all_corrects[2 * place] = first;
            all_corrects[2 * place + 1] = top;
            for (int i = 0; i < int(P::FED_RATES); ++i) own_hyper[i] = hyper[i];
            if (counter != nullptr) counter[1] = clock[1] + u64(now);
            clock[0] = u64(now) + 1;
        }
    }
};

// The task of a block.
template <class P>
__device__ __forceinline__ void reduce(const Reduction<P>& work, const Reported& reported,
                                       i64 block) {
    if constexpr (P::GRADIENTS != 0) {
        reduce_convs<P, 0>(work, block, 0);
        reduce_linears<P, 0>(work, block);
    }
    if (block != 0) return;
    f64 total = 0.0;
    i32 first_right = 0, top_right = 0;
    for (i64 i = threadIdx.x; i < work.n; i += 256) {
        total += f64(reported.losses[i]);
        first_right += reported.ranks[i] < 1;
        top_right += reported.ranks[i] < P::TOP;
    }
    total = block_sum<256>(total);
    first_right = block_sum<256>(first_right);
    top_right = block_sum<256>(top_right);
    if (threadIdx.x == 0)
        reported.leave<P>(f32(total / f64(work.n)), first_right, top_right, work.hyper);
}
