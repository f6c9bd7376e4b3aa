// Several blocks for an image: SPLIT of them, each with the gradients of a strip of the last map that
// convolutions hand on, rows `rank * YH / SPLIT` to `(rank + 1) * YH / SPLIT`.
//
// Gradients are linear in that map's, so each block carries its strip's back through all
// convolutions, with all that it falls on; sums over blocks are the gradients. Maps outside of what a
// strip falls on stay zero. The forward pass, and the backward pass of the layers behind the first
// fully connected one, every block makes for itself, so blocks never wait for one another.
//
// If they are a cluster (CLUSTER is SPLIT, else 1), then of convolutions each makes only the rows that
// its strip falls on, which are those that its strip is made of. Of the first fully connected layer
// they have parts of each sum, which all read from one another's shared memory.
#pragma once

#include "device/cluster.cuh"
#include "onchip/shape.cuh"

struct Rows {
    int begin, end;
};

// Whether this block tells of its image what all its blocks know.
template <class P>
__device__ __forceinline__ bool leads() {
    return P::SPLIT == 1 || blockIdx.x % int(P::SPLIT) == 0;
}

// Waits for all threads of the block, and of its cluster.
template <class P>
__device__ __forceinline__ void meet_blocks() {
    if constexpr (P::CLUSTER > 1)
        cluster_barrier();
    else
        __syncthreads();
}

// Between reads of what blocks share and the next writes there. Threads of the block wait here, for
// what they wrote for one another; the cluster's in `meet_readers`, before anything is written.
template <class P>
__device__ __forceinline__ void leave_readers() {
    __syncthreads();
    if constexpr (P::CLUSTER > 1) cluster_arrive();
}
template <class P>
__device__ __forceinline__ void meet_readers() {
    if constexpr (P::CLUSTER > 1) cluster_wait();
}

template <class P, int I>
struct Strip {
    using Conv = ConvStage<P, I>;
    static constexpr int SPLIT = int(P::SPLIT);
    static constexpr bool LAST = I + 1 >= P::CONVS;

    // Which of its blocks this is.
    __device__ __forceinline__ static int rank() { return SPLIT == 1 ? 0 : blockIdx.x % SPLIT; }

    // Rows of the map handed on that have a gradient.
    __host__ __device__ static constexpr Rows handed_on(int rank) {
        if constexpr (LAST) {
            return {rank * Conv::YH / SPLIT, (rank + 1) * Conv::YH / SPLIT};
        } else {
            using Next = ConvStage<P, I + 1>;
            const Rows made = Strip<P, I + 1>::products(rank);
            if (SPLIT == 1) return {0, Conv::YH};
            const int begin = made.begin * Next::UH - Next::PADH;
            const int end = (made.end - 1) * Next::UH - Next::PADH + Next::R;
            return {begin > 0 ? begin : 0, end < Conv::YH ? end : Conv::YH};
        }
    }
    // Rows of the products, before a pool.
    __host__ __device__ static constexpr Rows products(int rank) {
        if (SPLIT == 1) return {0, Conv::OH};
        const Rows rows = handed_on(rank);
        return Conv::POOL ? Rows{2 * rows.begin, 2 * rows.end} : rows;
    }
    // The most of them that a block has.
    __host__ __device__ static constexpr int most(bool of_products) {
        int most = 0;
        for (int rank = 0; rank < SPLIT; ++rank) {
            const Rows rows = of_products ? products(rank) : handed_on(rank);
            most = rows.end - rows.begin > most ? rows.end - rows.begin : most;
        }
        return most;
    }
    static constexpr int HANDED_ON = most(false), PRODUCTS = most(true);
    // Rows of the map handed on that the block makes, and the most of them.
    __host__ __device__ static constexpr Rows made(int rank) {
        return P::CLUSTER > 1 ? handed_on(rank) : Rows{0, Conv::YH};
    }
    static constexpr int MADE = P::CLUSTER > 1 ? HANDED_ON : Conv::YH;
    // The first of PRODUCTS rows that hold a block's and lie in the map.
    __host__ __device__ static constexpr int first(int rank) {
        const int begin = products(rank).begin;
        return begin + PRODUCTS <= Conv::OH ? begin : Conv::OH - PRODUCTS;
    }
    static_assert(SPLIT <= Conv::YH);
};
