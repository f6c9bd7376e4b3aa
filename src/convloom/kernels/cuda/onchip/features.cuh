// Which features of the first fully connected layer are a block's (strip.cuh).
#pragma once

#include "onchip/strip.cuh"

// Whether a row of the map that the features are is the block's.
template <class P>
__device__ __forceinline__ bool own_row(int row) {
    if constexpr (P::SPLIT == 1) {
        return true;
    } else {
        using Own = Strip<P, int(P::CONVS) - 1>;
        const Rows rows = Own::handed_on(Own::rank());
        return row >= rows.begin && row < rows.end;
    }
}

// A sum of COUNT parts, `step` apart from one another in shared memory; of layer 0 of a cluster's
// blocks together, in their order. Or of these the `share`-th of SHARES shares.
template <class P, int J, int COUNT, int SHARES = 1>
__device__ __forceinline__ f32 sum_of_blocks(const f32* parts, int step, int share = 0) {
    constexpr bool SEVERAL = J == 0 && P::CLUSTER > 1;
    constexpr int ALL = SEVERAL ? COUNT * int(P::SPLIT) : COUNT, EACH = (ALL + SHARES - 1) / SHARES;
    f32 part[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int at = share * EACH + i;
        const bool there = ALL % SHARES == 0 || at < ALL;
        if constexpr (!SEVERAL)
            part[i] = there ? parts[at * step] : 0.0f;
        else if constexpr (EACH == COUNT)
            part[i] = cluster_read(parts, share, i * step);
        else
            part[i] = there ? cluster_read(parts, at / COUNT, at % COUNT * step) : 0.0f;
    }
    f32 total = part[0];
#pragma unroll
    for (int i = 1; i < EACH; ++i) total += part[i];
    return total;
}

// Whether the block keeps the features of a pixel of that map; behind the last is padding.
template <class P>
__device__ __forceinline__ bool keeps_pixel(int pixel, bool padding) {
    if constexpr (P::CLUSTER == 1) {
        return true;
    } else {
        using Last = ConvStage<P, int(P::CONVS) - 1>;
        return padding ? leads<P>() : own_row<P>(pixel / Last::YW);
    }
}

// Vectors of WIDE neighbouring features of the first layer, of VECTORS in all, that hold one of the
// block's, if SHARED; else all of a layer's. Features lie in RUNS runs, each of all pixels, with EACH
// features of a pixel.
template <class P, bool SHARED, int RUNS, int EACH, int WIDE, int VECTORS>
struct FeatureVectors {
    using Conv = ConvStage<P, P::CONVS == 0 ? 0 : int(P::CONVS) - 1>;
    using Own = Strip<P, P::CONVS == 0 ? 0 : int(P::CONVS) - 1>;
    static constexpr int ROW = Conv::YW * EACH, RUN = Conv::YH * ROW / WIDE;  // a run in vectors
    // Where runs are not whole vectors each block takes all of them.
    static constexpr bool PARTED = SHARED && P::SPLIT > 1 && Conv::YH * ROW % WIDE == 0;

    __host__ __device__ static constexpr Rows of_run(int rank) {
        const Rows rows = Own::handed_on(rank);
        return {rows.begin * ROW / WIDE, (rows.end * ROW + WIDE - 1) / WIDE};
    }
    // The most vectors of a run that a block has.
    __host__ __device__ static constexpr int most() {
        int most = 0;
        for (int rank = 0; rank < int(P::SPLIT); ++rank) {
            const Rows own = of_run(rank);
            most = own.end - own.begin > most ? own.end - own.begin : most;
        }
        return most;
    }
    __host__ __device__ static constexpr int count() {
        if constexpr (PARTED)
            return RUNS * most();
        else
            return VECTORS;
    }
    static constexpr int COUNT = count();
    // They are so many pieces of as many vectors that lie one behind the other.
    static constexpr int PIECES = PARTED ? RUNS : 1, PIECE = COUNT / PIECES;

    // Whether each block's are all its own, and none holds one of another's.
    __host__ __device__ static constexpr bool alone() {
        if (SHARED && P::SPLIT > 1 && !PARTED) return false;
        for (int rank = 0; PARTED && rank < int(P::SPLIT); ++rank) {
            const Rows rows = Own::handed_on(rank), own = of_run(rank);
            if (rows.begin * ROW % WIDE != 0 || own.end - own.begin != most()) return false;
        }
        return true;
    }
    static constexpr bool ALONE = alone();

    // The one `offset` < STEP behind the `first`, a multiple of STEP: within a run, if runs have a
    // multiple of STEP.
    template <int STEP>
    __device__ __forceinline__ static int vector(int first, int offset) {
        if constexpr (PARTED && most() % STEP == 0)
            return vector(first) + offset;
        else
            return vector(first + offset);
    }
    // The i-th of COUNT. Where the block has fewer than others, not all are its own.
    __device__ __forceinline__ static int vector(int i) {
        if constexpr (PARTED) {
            constexpr int MOST = most();
            const int begin = of_run(Own::rank()).begin;
            return i / MOST * RUN + (begin + MOST <= RUN ? begin : RUN - MOST) + i % MOST;
        } else {
            return i;
        }
    }
};
