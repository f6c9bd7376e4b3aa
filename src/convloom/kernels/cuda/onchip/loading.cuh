// How weights and biases come to a block's shared memory: as groups of asynchronous copies, or, if
// BULK, by the copy engine, which needs one thread to ask and none to wait in line.
#pragma once

#include "device/bulk.cuh"
#include "device/chained.cuh"
#include "onchip/image.cuh"
#include "onchip/kit.cuh"

// The arguments of a launch.
struct Given {
    const f32* x;
    const i64* target;
    const u64* counter;
    const f32* dloss;
    const f32* parameter[12];
    const Bytes* packed;
    f32* slab;
    Bytes* kept;
    f32* losses;
    i32* ranks;
    f32* logits;
    f32 smoothing;
    i64 n;
    Feeding feeding;
};

// Ask for the packed weights between two places; `load_weights`: as one group of copies.
template <class P>
__device__ __forceinline__ void ask_range(Bytes* shared, const Bytes* packed, int from, int to) {
    for (int i = from + 16 * int(threadIdx.x); i < to; i += 16 * int(P::THREADS))
        cp_async_16(shared + i, packed + i);
}
template <class P>
__device__ __forceinline__ void load_weights(Bytes* shared, const Bytes* packed, int from, int to) {
    ask_range<P>(shared, packed, from, to);
    cp_async_commit();
}

// Ask for the matrices that stay in shared memory, as one group of copies; of the first, blocks that
// share an image ask for the weights of their own features alone.
template <class P>
__device__ __forceinline__ void load_matrices(Bytes* shared, const Bytes* packed) {
    constexpr int FROM = int(P::MATRICES_AT), TO = int(P::SUMS_AT);
    using Linear = LinearStage<P, 0>;
    if constexpr (P::CLUSTER > 1 && Linear::RESIDENT) {
        using Own = typename Kit<P>::template Layer<0>::Own;
        constexpr int BEGIN = Linear::FRAGMENTS, VECTOR = Format<P>::BYTES * 16 * Linear::O;
        constexpr int PARTS = VECTOR / 16, END = BEGIN + Linear::WIDTH / 16 * VECTOR;
        for (int i = threadIdx.x; i < Own::COUNT * PARTS; i += int(P::THREADS)) {
            const int place = BEGIN + Own::vector(i / PARTS) * VECTOR + i % PARTS * 16;
            cp_async_16(shared + place, packed + place);
        }
        ask_range<P>(shared, packed, FROM, BEGIN);
        ask_range<P>(shared, packed, END, TO);
    } else {
        ask_range<P>(shared, packed, FROM, TO);
    }
    cp_async_commit();
}

// Ask for the biases of the stages from the NUMBER-th on, into the group of copies that is open.
template <class P, int NUMBER>
__device__ __forceinline__ void load_biases(Bytes* shared, const f32* const (&parameter)[12]) {
    if constexpr (P::EARLY != 0 && NUMBER < P::CONVS + P::LINEARS) {
        constexpr bool CONV = NUMBER < P::CONVS;
        using Stage = typename Pick<CONV, ConvStage<P, CONV ? NUMBER : 0>,
                                    LinearStage<P, CONV ? 0 : NUMBER - int(P::CONVS)>>::Type;
        if constexpr (Stage::BIAS)
            for (int i = threadIdx.x; i < Stage::OUTPUTS; i += int(P::THREADS))
                cp_async_4(shared + int(P::BIAS_AT[NUMBER]) + 4 * i,
                           parameter[Stage::WEIGHT + 1] + i);
        load_biases<P, NUMBER + 1>(shared, parameter);
    }
}

// What the copy engine tells of the weights of each convolution, and behind them of all others. One
// thread asks and waits, the first of a warp of its own (image.cuh); a barrier tells the block.
template <class P>
struct BulkWeights {
    static constexpr int REST = int(P::CONVS), COUNT = REST + 1;
    Bytes* shared;
    const Bytes* packed;

    __device__ __forceinline__ static u64* barrier(int number) {
        __shared__ u64 barriers[COUNT];
        return barriers + number;
    }
    __device__ __forceinline__ static bool asks() {
        return threadIdx.x == 32 * Incoming<P>::ASKS;
    }

    __device__ __forceinline__ void copy(int number, int from, int nbytes) const {
        if (nbytes > 0) bulk_copy(barrier(number), shared + from, packed + from, nbytes);
    }
    template <int I>
    __device__ __forceinline__ void convs() const {
        if constexpr (I < P::CONVS) {
            copy(I, int(P::CONV_FRAGMENTS[I]), int(P::CONV_WEIGHTS[I]));
            bulk_close(barrier(I));
            convs<I + 1>();
        }
    }
    template <int I>
    __device__ __forceinline__ void transposed() const {
        if constexpr (I < P::CONVS) {
            copy(REST, int(P::CONV_TRANSPOSED[I]), int(P::CONV_TURNED[I]));
            transposed<I + 1>();
        }
    }
    // Of the first matrix, blocks that share an image ask for the weights of their own features.
    template <int J>
    __device__ __forceinline__ void matrices() const {
        if constexpr (J < P::LINEARS) {
            using Linear = LinearStage<P, J>;
            if constexpr (Linear::RESIDENT) {
                using Own = typename Kit<P>::template Layer<J>::Own;
                constexpr int VECTOR = Format<P>::BYTES * 16 * Linear::O;
                for (int piece = 0; piece < Own::PIECES; ++piece)
                    copy(REST, Linear::FRAGMENTS + Own::vector(piece * Own::PIECE) * VECTOR,
                         Own::PIECE * VECTOR);
            }
            matrices<J + 1>();
        }
    }
    __device__ __forceinline__ static void open() {
        for (int i = 0; i < COUNT; ++i) bulk_open(barrier(i));
        bulk_opened();
    }
    __device__ __forceinline__ void ask() const {
        convs<0>();
        transposed<0>();
        matrices<0>();
        bulk_close(barrier(REST));
    }
};

// Make good what SCRATCH_BYTES at SCRATCH_AT overwrote: weights and biases, as at the beginning, and
// the zeros around maps.
template <class P>
__device__ __forceinline__ void restore(Bytes* shared, const Given& given) {
    constexpr int FROM = int(P::SCRATCH_AT), TO = int(FROM + P::SCRATCH_BYTES);
    static_assert(TO % 16 == 0, "whole vectors are made good");
    constexpr int MATRICES = int(P::MATRICES_AT), IMAGE = int(P::IMAGE_AT);
    __syncthreads();
    load_biases<P, 0>(shared, given.parameter);
    load_weights<P>(shared, given.packed, FROM, int(least(TO, MATRICES)));
    load_weights<P>(shared, given.packed, int(greatest(FROM, MATRICES)), int(least(TO, P::SUMS_AT)));
    if constexpr (TO > IMAGE) {
        for (int i = IMAGE + 16 * int(threadIdx.x); i < TO; i += 16 * int(P::THREADS))
            at<uint4>(shared + i) = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
}

// What the warp does that asks the copy engine.
template <class P>
__device__ __forceinline__ void ask_weights(Bytes* shared, const Given& given) {
    const bool asks = BulkWeights<P>::asks();
    if (asks) BulkWeights<P>::open();
    if constexpr (P::CHAINED != 0) {
        await_before();
        begin_next();  // behind the wait: reduction.cuh says who counts on it
    }
    if (asks) BulkWeights<P>{shared, given.packed}.ask();
}

// Ask for all weights and biases that stay in shared memory, but for what the copy engine brings.
template <class P>
__device__ __forceinline__ void load_parameters(Bytes* shared, const Given& given) {
    load_biases<P, 0>(shared, given.parameter);
    if constexpr (P::BULK != 0) {
        cp_async_commit();
    } else {
        load_weights<P>(shared, given.packed, 0, int(P::MATRICES_AT));
        load_matrices<P>(shared, given.packed);
    }
}

// Until the weights of convolution NUMBER, or behind the last one all others, are there, for the
// block behind its next barrier.
template <class P, int NUMBER>
__device__ __forceinline__ void await_weights() {
    if constexpr (P::BULK != 0) {
        if constexpr (NUMBER == 0) cp_async_wait_all();  // of biases
        if (BulkWeights<P>::asks()) bulk_wait(BulkWeights<P>::barrier(NUMBER));
    } else if constexpr (NUMBER == P::CONVS) {
        cp_async_wait_all();
    } else if constexpr (NUMBER == 0) {
        cp_async_wait<1>();
    }
}
