// The tasks of the blocks of onchip/reduce.cu, which says what they are.
#pragma once

#include "device/chained.cuh"
#include "device/reduce.cuh"
#include "device/update.cuh"
#include "onchip/kit.cuh"
#include "onchip/linear_wgrad.cuh"

// A parameter's tensors and rates.
struct Parameter {
    f32 *value, *gradient, *first, *second;
    f32 rate, decay;
};

// Until the step has ended whose sums these are. In a chain a block asks for parameters, states and
// rates before it: the step waits for the reduction before this one ahead of its begin_next
// (device/chained.cuh).
template <class P>
__device__ __forceinline__ void await_step() {
    if constexpr (P::CHAINED != 0) {
        await_before();
        begin_next();  // behind the wait: source.cuh says who counts on it
    }
}

struct NoRule {
    template <class Values>
    __device__ NoRule(Values*, const f64*, f32, f32) {}
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
        if constexpr (P::CHAINED != 0) {  // past the first-level cache
            const volatile f32 *value = one.value, *first = one.first, *second = one.second;
            return {value[index], first[index], P::RULE == 2 ? second[index] : 0.0f};
        }
        return {one.value[index], one.first[index], P::RULE == 2 ? one.second[index] : 0.0f};
    }

    // The hyper values as they may be read ahead of the step's end: past the first-level cache.
    using Rates = typename Pick<P::CHAINED != 0, const volatile f64, const f64>::Type;
    __device__ __forceinline__ Rates* rates() const { return hyper; }

    // If AHEAD all that an update needs besides the gradient is asked for before that is known: what
    // elements of a parameter share, and the element `index`, or none where that is negative.
    using Early = typename Pick<P::AHEAD != 0, Rule, NoRule>::Type;
    template <int NUMBER>
    __device__ __forceinline__ Early early() const {
        return Early(rates(), nullptr, parameter[NUMBER].rate, parameter[NUMBER].decay);
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

// Slabs that a thread asks for at once: as many as a GPU of 136 multiprocessors has for it.
static constexpr int SLABS = 17;

// Convolutions from the I-th on; `block` counts from the first block of this one.
template <class P, int I>
__device__ __forceinline__ void reduce_convs(const Reduction<P>& work, i64& block, i64 before) {
    if constexpr (I < P::CONVS) {
        using Gradient = typename Kit<P>::template Wgrad<I>;
        using Conv = ConvStage<P, I>;
        constexpr int EACH = int(P::CONV_EACH), ELEMENTS = 32 * EACH, SIZE = Gradient::SIZE;
        static_assert(EACH <= WARPS, "a warp settles 32 elements");
        constexpr i64 BLOCKS = (SIZE + ELEMENTS - 1) / ELEMENTS;
        if (block >= 0 && block < BLOCKS) {
            f32* sums = &at<f32>(work.shared);
            const int first = int(block) * ELEMENTS + threadIdx.x % 32, group = threadIdx.x / 32;
            const int own = first + 32 * group;
            const bool settles = group < EACH && own < SIZE;
            const typename Gradient::Place place = Gradient::place(settles ? own : 0);
            const bool there = settles && place.index >= 0;
            constexpr int WEIGHT = Conv::WEIGHT, BIAS = WEIGHT + (Conv::BIAS ? 1 : 0);
            const int index = there ? place.index : -1;
            const Element asked = place.bias ? work.template ask<BIAS>(index)
                                             : work.template ask<WEIGHT>(index);
            const auto of_weight = work.template early<WEIGHT>();
            const auto of_bias = work.template early<BIAS>();
            await_step<P>();
            f32 sum[EACH] = {};
            for (i64 s = group; s < work.slabs; s += SLABS * WARPS) {
                f32 part[EACH][SLABS];
#pragma unroll
                for (int e = 0; e < SLABS; ++e) {
                    const i64 at = s + e * WARPS;
                    const f32* slab = work.slab + at * P::SLAB + before + first;
#pragma unroll
                    for (int j = 0; j < EACH; ++j)
                        part[j][e] =
                            at < work.slabs && first + 32 * j < SIZE ? slab[32 * j] : 0.0f;
                }
#pragma unroll
                for (int e = 0; e < SLABS; ++e)
#pragma unroll
                    for (int j = 0; j < EACH; ++j) sum[j] += part[j][e];
            }
#pragma unroll
            for (int j = 0; j < EACH; ++j) sums[j * 32 * WARPS + threadIdx.x] = sum[j];
            __syncthreads();
            if (there) {
                const f32* parts = sums + group * 32 * WARPS + threadIdx.x % 32;
                f32 total = parts[0];
#pragma unroll
                for (int g = 1; g < WARPS; ++g) total += parts[g * 32];
                if (place.bias) {
                    work.template settle<BIAS>(index, total, asked, of_bias);
                } else {
                    const f32 value =
                        work.template settle<WEIGHT>(index, total, asked, of_weight);
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
    static constexpr int GROUPS = 1, PARTS = WARPS, BIASES = ROWS * FEATURES;
    static constexpr int OUTPUTS = O_GROUPS == 1 ? O : ROWS;
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
        const LinearUpdate<P, J, ExactLinearWgrad> update(work, begin, out);
        await_step<P>();
        ask(value, own, warp * OWN, work.n);
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
        sums[warp * SUMS + BIASES + lane] = bias;
        __syncthreads();
        update.settle(work);
    }

    // Matrices are read as they are.
    __device__ __forceinline__ static void renew(Bytes*, int, int, f32) {}
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

    // The step's row of the tables, if FED; past the first-level cache (device/chained.cuh).
    template <class P>
    __device__ __forceinline__ i64 row() const {
        if constexpr (P::FED == 0) return 0;
        const volatile u64* now = clock;
        return i64(now[2]) + place;
    }
    // The step's hyper values: those of its row if FED.
    template <class P>
    __device__ __forceinline__ const f64* hyper(const f64* given, i64 row) const {
        if constexpr (P::FED != 0) return rates + row * P::FED_RATES;
        else return given;
    }
    // Leave the sums, and if FED file them and go on to the next row. `number` is the first step's.
    template <class P>
    __device__ __forceinline__ void leave(f32 mean, i32 first, i32 top, i64 row,
                                          u64 number) const {
        *loss = mean;
        correct[0] = first;
        correct[1] = top;
        if constexpr (P::FED != 0) {
            const i64 place = row * members + member;
            all_losses[place] = mean;
            all_corrects[2 * place] = first;
            all_corrects[2 * place + 1] = top;
            if (counter != nullptr) counter[1] = number + u64(row);
            clock[0] = u64(row) + 1;
        }
    }
};

// How many hyper values a row has, if FED.
template <class P>
__host__ __device__ constexpr int hyper_values() {
    if constexpr (P::FED != 0)
        return int(P::FED_RATES);
    else
        return 0;
}

// Mean loss and right answers of the batch, the task of the last block. What does not wait for the
// step is asked for ahead of it.
template <class P>
__device__ __forceinline__ void report(const Reduction<P>& work, const Reported& reported,
                                       i64 row) {
    constexpr int THREADS = WARPS * 32, RATES = hyper_values<P>();
    static_assert(RATES <= THREADS, "a thread for each value");
    const volatile u64* clock = reported.clock;
    const u64 number = P::FED != 0 ? clock[1] : 0;
    const f64 share = 1.0 / f64(work.n);
    const f64 rate = threadIdx.x < RATES ? work.rates()[threadIdx.x] : 0.0;
    await_step<P>();
    f64 total = 0.0;
    i32 first = 0, top = 0;
    for (i64 i = threadIdx.x; i < work.n; i += THREADS) {
        total += f64(reported.losses[i]);
        first += reported.ranks[i] < 1;
        top += reported.ranks[i] < P::TOP;
    }
    if (threadIdx.x < RATES) reported.own_hyper[threadIdx.x] = rate;
    __shared__ f64 totals[WARPS];
    __shared__ i32 counts[2][WARPS];
    total = warp_sum(total), first = warp_sum(first), top = warp_sum(top);
    if (threadIdx.x % 32 == 0) {
        const int warp = threadIdx.x / 32;
        totals[warp] = total, counts[0][warp] = first, counts[1][warp] = top;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp)
        total += totals[warp], first += counts[0][warp], top += counts[1][warp];
    reported.leave<P>(f32(total * share), first, top, row, number);
}

// The task of a block.
template <class P>
__device__ __forceinline__ void reduce(const Reduction<P>& work, const Reported& reported,
                                       i64 row, i64 block) {
    if constexpr (P::GRADIENTS != 0) {
        reduce_convs<P, 0>(work, block, 0);
        reduce_linears<P, 0>(work, block);
    }
    if (block == 0) report(work, reported, row);
}
