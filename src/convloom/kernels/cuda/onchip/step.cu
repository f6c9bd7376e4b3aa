// A whole small network on chip: a block carries IMAGES images at a time through forward pass, loss
// and backward pass in its shared memory, and writes what the parameters' gradients are made of:
// sums of its filters' gradients (conv_wgrad.cuh), and for each image the features and output
// gradients of the fully connected layers. onchip/reduce.cu does the rest.
//
// MODE is 0: logits; 1: loss and ranks too; 2: gradients too. A parameter's number is its place
// among p0 to p11. Operands of products are bfloat16, sums and everything else float32; if EXACT
// all is float32.
// Against the rungs below: between the first pixel and the gradients nothing of an image passes
// through device memory. Limit: reads of shared memory, and barriers between the stages.
#include "onchip/image.cuh"
#include "onchip/kit.cuh"
#include "onchip/loss.cuh"

// What a block works with.
template <class P>
struct Work {
    const f32* parameter[12];
    const Bytes* packed;
    const u64* counter;
    Bytes* kept;
    i64 n;
    Bytes* shared;

    template <class Stage>
    __device__ __forceinline__ const f32* bias() const {
        return Stage::BIAS ? parameter[Stage::WEIGHT + 1] : nullptr;
    }
    // Where the features of a layer are kept, for all images; its gradients are behind.
    template <class Linear>
    __device__ __forceinline__ Bytes* features() const {
        return P::MODE == 2 ? kept + Kit<P>::ELEMENT * n * Linear::BEFORE : nullptr;
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
            Kit<P>::template Forward<I>::run(work.shared, work.template bias<Conv>(), buffer);
            if constexpr (I + 1 == P::CONVS) cp_async_wait_all();  // for the matrices
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
    __device__ __forceinline__ void finish(const Work<P>& work, f32* slab) const {
        if constexpr (THERE) {
            gradient.finish(&at<f32>(work.shared), slab);
            rest.finish(work, slab + Kit<P>::template Wgrad<I>::SIZE);
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
            Layer::forward(work.shared, work.template matrix<Linear>(),
                           work.template features<Linear>(), first, work.n);
            __syncthreads();
            if constexpr (!Linear::LAST) {
                Layer::hand_on(work.shared, work.template bias<Linear>(), work.counter, first);
                __syncthreads();
                Linears<P, J + 1>::forward(work, first);
            }
        }
    }
    __device__ __forceinline__ static void backward(const Work<P>& work, i64 first) {
        if constexpr (THERE) {
            Linears<P, J + 1>::backward(work, first);
            Layer::keep(
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

// Ask for the packed weights between two places, as one group of copies.
template <class P>
__device__ __forceinline__ void load_weights(Bytes* shared, const Bytes* packed, int from, int to) {
    for (int i = from + 16 * int(threadIdx.x); i < to; i += 16 * int(P::THREADS))
        cp_async_16(shared + i, packed + i);
    cp_async_commit();
}

// Seed and number of a fed step, and its row for the kernel behind this one. Every thread may read
// them after the next barrier.
__device__ __forceinline__ const u64* fed_counter(const u64* counter, u64* clock) {
    __shared__ u64 now[2];
    if (threadIdx.x == 0) {
        now[0] = counter == nullptr ? 0 : counter[0];
        now[1] = clock[1] + clock[0];
        if (blockIdx.x == 0) clock[2] = clock[0];
    }
    return now;
}

template <class P>
__global__ void __launch_bounds__(P::THREADS, 1)
    onchip_step(const f32* x, const i64* target, const u64* counter, const f32* dloss,
                const f32* p0, const f32* p1, const f32* p2, const f32* p3, const f32* p4,
                const f32* p5, const f32* p6, const f32* p7, const f32* p8, const f32* p9,
                const f32* p10, const f32* p11, const u8* packed, f32* slab, u8* kept, f32* losses,
                i32* ranks, f32* logits, f32 smoothing, i64 n, const void* images,
                const i64* labels, const f32* scales, const f32* shifts, const i64* order,
                const u8* draws, u64* clock) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) unsigned char smem_raw[];
    const Source<P> source(x, target, Feeding{images, labels, scales, shifts, order, draws, clock});
    load_weights<P>(smem_raw, packed, 0, int(P::MATRICES_AT));
    load_weights<P>(smem_raw, packed, int(P::MATRICES_AT), int(P::SUMS_AT));
    i64 first = i64(blockIdx.x) * int(P::IMAGES);
    const i64 stride = i64(gridDim.x) * int(P::IMAGES);
    Samples<P> now, next;
    now.ask(source, first, n);
    next.ask(source, first + stride, n);
    if constexpr (P::FED != 0) counter = fed_counter(counter, clock);
    const Work<P> work{{p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11},
                       packed, counter, kept, n, smem_raw};
    const f32 scale = P::MODE == 2 ? *dloss / f32(n) : 0.0f;
    const typename Loss<P>::Batch batch{source, scale, smoothing, logits, losses, ranks, n};
    constexpr int IMAGES = int(P::IMAGES);
    using Last = LinearStage<P, int(P::LINEARS) - 1>;
    Incoming<P> incoming;
    incoming.ask(source, now);
    for (int i = threadIdx.x; i < IMAGES * int(P::IMAGE_BYTES) / 16; i += int(P::THREADS))
        at<uint4>(smem_raw + int(P::IMAGE_AT) + 16 * i) = make_uint4(0, 0, 0, 0);
    Convs<P, 0> convs;
    convs.begin();
    __syncthreads();
    int buffer = 0;
    incoming.put(source, smem_raw, buffer);
    for (; first < n; first += stride) {
        cp_async_wait<1>();
        __syncthreads();
        const bool more = first + stride < n;
        const i64 label = batch.label(now);
        if (more) incoming.ask(source, next);
        now = next;
        next.ask(source, first + 2 * stride, n);
        Convs<P, 0>::forward(work, buffer);
        if constexpr (P::CONVS == 0) cp_async_wait_all();
        if constexpr (P::CONVS == 0) __syncthreads();
        Linears<P, 0>::forward(work, first);
        Loss<P>::run(smem_raw, work.template bias<Last>(), batch, first, label);
        if constexpr (P::MODE == 2) {
            __syncthreads();
            Linears<P, 0>::backward(work, first);
            convs.backward(work, buffer);
        }
        if constexpr (P::CONVS == 0) __syncthreads();  // its input has but one buffer
        if (more) incoming.put(source, smem_raw, buffer ^= 1);
    }
    if constexpr (P::MODE == 2 && P::CONVS > 0)
        convs.finish(work, slab + i64(blockIdx.x) * P::SLAB);
#endif
}
