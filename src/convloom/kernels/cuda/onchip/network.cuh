// A whole network on chip: what a block does with the images that it carries one after the other.
// onchip/step.cu says what of it goes where.
#pragma once

#include "device/chained.cuh"
#include "onchip/image.cuh"
#include "onchip/loading.cuh"
#include "onchip/loss.cuh"

// What a block works with.
template <class P>
struct Work {
    const f32* const (&parameter)[12];
    const Bytes* packed;
    const u64* counter;
    Bytes* kept;
    i64 n;
    Bytes* shared;

    __device__ __forceinline__ Work(const Given& given, const u64* counter, Bytes* shared)
        : parameter(given.parameter),
          packed(given.packed),
          counter(counter),
          kept(given.kept),
          n(given.n),
          shared(shared) {}

    // The bias of stage number STAGE, fully connected ones behind convolutions.
    template <class Stage, int NUMBER>
    __device__ __forceinline__ const f32* bias() const {
        if constexpr (!Stage::BIAS)
            return nullptr;
        else if constexpr (P::EARLY != 0)
            return &at<f32>(shared + int(P::BIAS_AT[NUMBER]));
        else
            return parameter[Stage::WEIGHT + 1];
    }
    // Where the features of a layer are kept, for all images, if the block is to keep them; its
    // gradients are behind.
    template <class Linear>
    __device__ __forceinline__ Bytes* features() const {
        constexpr bool SHARED = P::CLUSTER > 1 && Linear::BEFORE == 0;  // each keeps its own
        if (P::MODE != 2 || !(SHARED || leads<P>())) return nullptr;
        return kept + Kit<P>::ELEMENT * n * Linear::BEFORE;
    }
    // The weights of a layer: packed, or as they are.
    template <class Linear>
    __device__ __forceinline__ const Bytes* matrix() const {
        return Kit<P>::EXACT ? reinterpret_cast<const Bytes*>(parameter[Linear::WEIGHT]) : packed;
    }
};

// The convolutions from the I-th on.
template <class P, int I>
struct Convs {
    static constexpr bool THERE = I < P::CONVS;
    typename Kit<P>::template Wgrad<THERE ? I : 0> gradient;
    Convs<P, THERE ? I + 1 : -1> rest;
    using Conv = ConvStage<P, THERE ? I : 0>;

    __device__ __forceinline__ void begin() {
        if constexpr (THERE && P::MODE == 2) {
            gradient.begin();
            rest.begin();
        }
    }
    __device__ __forceinline__ static void forward(const Work<P>& work, int buffer) {
        if constexpr (THERE) {
            Kit<P>::template Forward<I>::run(work.shared, work.template bias<Conv, I>(), buffer);
            await_weights<P, I + 1>();
            __syncthreads();
            Convs<P, I + 1>::forward(work, buffer);
        }
    }
    __device__ __forceinline__ void backward(const Work<P>& work, int buffer) {
        if constexpr (THERE) {
            rest.backward(work, buffer);
            if constexpr (I == 0) {
                gradient.add(work.shared, buffer);
            } else if constexpr (Conv::IN_PLACE) {
                gradient.add(work.shared, buffer);
                __syncthreads();  // the input's gradient will lie where the input was
                Kit<P>::template Dgrad<I>::run(work.shared);
                __syncthreads();
            } else {
                // Half of the warps begin with one gradient, half with the other.
#pragma unroll 1
                for (int turn = 0; turn < 2; ++turn) {
                    if ((threadIdx.x / 32 + turn) % 2 == 0)
                        gradient.add(work.shared, buffer);
                    else
                        Kit<P>::template Dgrad<I>::run(work.shared);
                }
                __syncthreads();
            }
        }
    }
    // Add up the warps' sums and write the block's: all convolutions at once where each has scratch
    // of its own (APART), else one behind the other.
    __device__ __forceinline__ void finish(const Work<P>& work, f32* slab) const {
        if constexpr (THERE) {
            __syncthreads();
            put(work);
            __syncthreads();
            leave(work, slab);
            if constexpr (P::APART == 0)
                rest.finish(work, slab + Kit<P>::template Wgrad<I>::SIZE);
        }
    }
    __device__ __forceinline__ static f32* scratch(const Work<P>& work) {
        return &at<f32>(work.shared + int(P::SCRATCH_AT + P::CONV_SCRATCH[I]));
    }
    __device__ __forceinline__ void put(const Work<P>& work) const {
        if constexpr (THERE) {
            gradient.put(scratch(work));
            if constexpr (P::APART != 0) rest.put(work);
        }
    }
    __device__ __forceinline__ static void leave(const Work<P>& work, f32* slab) {
        if constexpr (THERE) {
            using Gradient = typename Kit<P>::template Wgrad<I>;
            Gradient::leave(scratch(work), slab);
            if constexpr (P::APART != 0) Convs<P, I + 1>::leave(work, slab + Gradient::SIZE);
        }
    }
};
template <class P>
struct Convs<P, -1> {};

// The fully connected layers from the J-th on.
template <class P, int J>
struct Linears {
    static constexpr bool THERE = J < P::LINEARS;
    using Linear = LinearStage<P, THERE ? J : 0>;
    using Layer = typename Kit<P>::template Layer<THERE ? J : 0>;

    __device__ __forceinline__ static void forward(const Work<P>& work, i64 first) {
        if constexpr (THERE) {
            Layer::forward(work.shared, work.template matrix<Linear>());
            if constexpr (J == 0)
                meet_blocks<P>();
            else
                __syncthreads();
            if constexpr (!Linear::LAST) {
                Layer::hand_on(work.shared, work.template bias<Linear, int(P::CONVS) + J>(),
                               work.counter, first);
                were_read();
                Linears<P, J + 1>::forward(work, first);
            }
        }
    }
    // Behind the last read of the layer's sums; those of the first are what blocks share. The next
    // layer writes its own there at once; if there is none, `may_write` is early enough.
    __device__ __forceinline__ static void were_read() {
        if constexpr (J > 0)
            __syncthreads();
        else if constexpr (Linear::LAST)
            leave_readers<P>();
        else
            meet_blocks<P>();
    }
    __device__ __forceinline__ static void may_write() {
        if constexpr (LinearStage<P, 0>::LAST) meet_readers<P>();
    }
    // Keep the features of all layers, while some warps derive the gradient of the loss.
    __device__ __forceinline__ static void keep(const Work<P>& work, i64 first) {
        constexpr int DERIVE = 32 * int(P::IMAGES), THREADS = int(P::THREADS) - DERIVE;
        if constexpr (THERE) {
            Bytes* kept = work.template features<Linear>();
            if (kept != nullptr && threadIdx.x >= DERIVE)
                Layer::template keep_features<THREADS>(work.shared, kept, first, work.n,
                                                       threadIdx.x - DERIVE);
            Linears<P, J + 1>::keep(work, first);
        }
    }
    __device__ __forceinline__ static void backward(const Work<P>& work, i64 first) {
        if constexpr (THERE) {
            Linears<P, J + 1>::backward(work, first);
            if (leads<P>())
                Layer::keep_gradients(
                    work.shared,
                    work.template features<Linear>() + Kit<P>::ELEMENT * work.n * Linear::WIDTH,
                    first, work.n);
            if constexpr (J > 0 || P::CONVS > 0) {
                Layer::backward(work.shared, work.template matrix<Linear>(), work.counter, first);
                __syncthreads();
            }
        }
    }
};

// Seed and number of a fed step, and its row for the kernel behind this one, which one block leaves
// there. Every thread may read them after the next barrier.
template <class P>
__device__ __forceinline__ const u64* fed_counter(const u64* counter, const Feeding& fed,
                                                  const Source<P>& source, bool leaves) {
    __shared__ u64 now[2];
    if (threadIdx.x == 0) {
        const volatile u64 *seed = counter, *clock = fed.clock;  // source.cuh says why
        now[0] = counter == nullptr ? 0 : seed[0];
        now[1] = clock[1] + source.row;
        if (leaves && fed.place == 0) fed.clock[2] = source.row;
    }
    return now;
}

// The first images of a block's turns, where each block of a launch has its own sums: every
// gridDim-th turn of the batch, or, where SPLIT blocks share an image, of as many fewer.
template <class P>
struct EveryTurn {
    static constexpr bool MANY = false;
    i64 first, stride, n;

    __device__ __forceinline__ explicit EveryTurn(i64 n)
        : first(i64(blockIdx.x) / int(P::SPLIT) * int(P::IMAGES)),
          stride(i64(gridDim.x) / int(P::SPLIT) * int(P::IMAGES)),
          n(n) {}
    __device__ __forceinline__ i64 now() const { return first; }
    __device__ __forceinline__ i64 next() const { return first + stride; }
    __device__ __forceinline__ i64 after_next() const { return first + 2 * stride; }
    __device__ __forceinline__ bool there() const { return first < n; }
    __device__ __forceinline__ bool more() const { return first + stride < n; }
    __device__ __forceinline__ void go() { first += stride; }
};

// The same where a block makes the sums of several such blocks, one after the other: of block
// `first` of `blocks`, and every `parts`-th from there.
template <class P>
struct SeveralTurns {
    static constexpr bool MANY = true;
    static_assert(P::SPLIT == 1, "a block carries whole images");
    // A block whose sums are made, and the turn within it; what lies behind the last is not there.
    struct Turn {
        int sums, round;
    };
    Turn of[3];
    int blocks, parts;
    i64 n;

    __device__ __forceinline__ SeveralTurns(i64 first, i64 blocks, i64 parts, i64 n)
        : of{{int(first), 0}, {}, {}}, blocks(int(blocks)), parts(int(parts)), n(n) {
        of[1] = after(of[0]);
        of[2] = after(of[1]);
    }
    __device__ __forceinline__ i64 image(const Turn& turn) const {
        return turn.sums < blocks
                   ? (turn.sums + i64(turn.round) * blocks) * int(P::IMAGES)
                   : n;
    }
    __device__ __forceinline__ Turn after(const Turn& turn) const {
        const Turn next{turn.sums, turn.round + 1};
        return image(next) < n ? next : Turn{turn.sums + parts, 0};
    }
    __device__ __forceinline__ i64 now() const { return image(of[0]); }
    __device__ __forceinline__ i64 next() const { return image(of[1]); }
    __device__ __forceinline__ i64 after_next() const { return image(of[2]); }
    __device__ __forceinline__ bool there() const { return of[0].sums < blocks; }
    __device__ __forceinline__ bool more() const { return of[1].sums < blocks; }
    // Whether this turn is the last of its sums, and whose these are.
    __device__ __forceinline__ bool ends() const { return of[1].sums != of[0].sums; }
    __device__ __forceinline__ i64 sums() const { return of[0].sums; }
    __device__ __forceinline__ void go() {
        of[0] = of[1];
        of[1] = of[2];
        of[2] = after(of[2]);
    }
};

// Zeros in vectors of 16 bytes of the block's maps, from one to another.
template <class P>
__device__ __forceinline__ void clear_maps(Bytes* shared, int from, int to) {
    for (int i = from + threadIdx.x; i < to; i += int(P::THREADS))
        at<uint4>(shared + int(P::IMAGE_AT) + 16 * i) = make_uint4(0, 0, 0, 0);
}

// Carry the images of all turns; `leaves`: whether this is the block that leaves the fed step's row.
template <class P, class Turns>
__device__ __forceinline__ void carry(const Given& given, Turns turn, bool leaves, Bytes* shared) {
    const i64 n = given.n;
    // In a chain the kernel before this one may still run. Until that has ended, this one reads only
    // what no kernel writes, and its row; the first step of a graph waits for that too.
    constexpr bool CHAINED = P::CHAINED != 0;
    constexpr int IMAGE_VECTORS = int(P::IMAGES) * int(P::IMAGE_BYTES) / 16;
    if (CHAINED && given.feeding.place == 0) await_before();
    const bool feeds = Incoming<P>::feeds();
    const Source<P> source(given.x, given.target, given.feeding);
    if constexpr (!CHAINED) load_parameters<P>(shared, given);
    clear_maps<P>(shared, 0, IMAGE_VECTORS / 2);
    Samples<P> now, next;
    if (feeds) {
        now.ask(source, turn.now(), n);
        next.ask(source, turn.next(), n);
    }
    clear_maps<P>(shared, IMAGE_VECTORS / 2, IMAGE_VECTORS);
    Incoming<P> incoming;
    incoming.ask(source, now);
    __syncthreads();
    if constexpr (P::BULK != 0)
        if (!feeds) ask_weights<P>(shared, given);
    const u64* counter = given.counter;
    if constexpr (P::FED != 0) counter = fed_counter(counter, given.feeding, source, leaves);
    const Work<P> work(given, counter, shared);
    const f32 scale = P::MODE == 2 ? *given.dloss / f32(n) : 0.0f;
    const typename Loss<P>::Batch batch{source,       scale,        given.smoothing, given.logits,
                                        given.losses, given.ranks, n};
    using Last = LinearStage<P, int(P::LINEARS) - 1>;
    Convs<P, 0> convs;
    convs.begin();
    int buffer = 0;
    incoming.put(source, shared, buffer);
    // The wait stands within the loop, so that what compilers take out of that comes before it.
    for (bool begins = CHAINED; turn.there(); turn.go(), begins = false) {
        if (begins) {
            await_before();
            begin_next();
            load_parameters<P>(shared, given);
        }
        await_weights<P, 0>();
        __syncthreads();
        const bool more = turn.more();
        const i64 label = batch.label(now);
        if (more) incoming.ask(source, next);
        now = next;
        if (feeds) next.ask(source, turn.after_next(), n);
        Convs<P, 0>::forward(work, buffer);
        Linears<P, 0>::forward(work, turn.now());
        const typename Loss<P>::Image image(
            shared, work.template bias<Last, int(P::CONVS + P::LINEARS) - 1>(), label);
        if constexpr (!Loss<P>::LATER) Loss<P>::tell(image, batch, turn.now());
        if constexpr (P::MODE == 2) {
            Loss<P>::derive(shared, image, batch, turn.now());
            Linears<P, 0>::keep(work, turn.now());
            Linears<P, int(P::LINEARS) - 1>::were_read();
            Linears<P, 0>::backward(work, turn.now());
            if constexpr (Loss<P>::LATER) Loss<P>::tell(image, batch, turn.now());
            convs.backward(work, buffer);
            Linears<P, 0>::may_write();
        }
        if constexpr (P::CONVS == 0) __syncthreads();  // its input has but one buffer
        if constexpr (Turns::MANY && P::MODE == 2 && P::CONVS > 0) {
            if (turn.ends()) {
                convs.finish(work, given.slab + turn.sums() * P::SLAB);
                if (more) restore<P>(shared, given);
                convs.begin();
            }
        }
        if (more) incoming.put(source, shared, buffer ^= 1);
    }
    if constexpr (!Turns::MANY && P::MODE == 2 && P::CONVS > 0)
        convs.finish(work, given.slab + i64(blockIdx.x) * P::SLAB);
}
