// An image on its way from device memory to its map: asked for early, in registers, and put there
// when the map is free.
//
// If BULK, one warp has none of it: it is the one that asks for weights, ahead of all others, which
// meanwhile wait for the numbers of samples (loading.cuh). It tells no loss and derives none.
// P holds the number of threads; XROW: 1 if images lie CHW, 0 for HWC; FLAT: 1 if the first stage
// is fully connected. Images behind the last one are copies of it, and count for nothing.
#pragma once

#include "onchip/shape.cuh"
#include "onchip/source.cuh"

template <class P>
struct Incoming {
    static constexpr int C = int(P::CONV_C[0]), H = int(P::CONV_H[0]), W = int(P::CONV_W[0]);
    static constexpr int SIZE = C * H * W, IMAGES = int(P::IMAGES);
    static constexpr int WARPS = int(P::THREADS) / 32, ASKS = WARPS - 1 - IMAGES;
    static constexpr int THREADS = int(P::THREADS) - (P::BULK != 0 ? 32 : 0);
    static constexpr int EACH = (SIZE * IMAGES + THREADS - 1) / THREADS;
    static_assert(P::BULK == 0 || ASKS >= IMAGES, "a warp that is spared");
    typename Source<P>::Raw pixel[EACH];

    // Whether the thread's warp has some of the image, and the thread's number among those that do.
    __device__ __forceinline__ static bool feeds() {
        return P::BULK == 0 || threadIdx.x / 32 != ASKS;
    }
    __device__ __forceinline__ static int number() {
        if constexpr (P::BULK == 0) return threadIdx.x;
        return feeds() ? threadIdx.x - (threadIdx.x / 32 > ASKS ? 32 : 0) : SIZE * IMAGES;
    }

    // Ask for the images of these samples.
    __device__ __forceinline__ void ask(const Source<P>& source, const Samples<P>& samples) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int i = number() + e * THREADS;
            if (i < SIZE * IMAGES)
                pixel[e] = source.raw(samples[image_of(i)], i - image_of(i) * SIZE);
        }
    }

    // Which of the block's images element i belongs to.
    __device__ __forceinline__ static int image_of(int i) { return IMAGES == 1 ? 0 : i / SIZE; }

    // Put them into their maps; `buffer` is 0 and 1 in turns.
    __device__ __forceinline__ void put(const Source<P>& source, Bytes* shared, int buffer) const {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int i = number() + e * THREADS;
            if (i < SIZE * IMAGES)
                put(region<P>(shared, image_of(i)) + buffer * int(P::INPUT_BYTES) +
                        offset(i - image_of(i) * SIZE),
                    source.value(pixel[e], i - image_of(i) * SIZE));
        }
    }

    __device__ __forceinline__ static void put(Bytes* place, f32 value) {
        if constexpr (P::EXACT != 0)
            at<f32>(place) = value;
        else
            at<typename Format<P>::Number>(place) = Format<P>::of(value);
    }

    // Where element i of an image goes, in bytes.
    __device__ __forceinline__ static int offset(int i) {
        using Conv = ConvStage<P, 0>;
        const int channel = P::XROW != 0 ? i / (H * W) : i % C;
        const int pixel = P::XROW != 0 ? i % (H * W) : i / C;
        constexpr int SIZE_OF = P::EXACT != 0 ? 4 : Format<P>::BYTES;
        constexpr int CHANNELS = Conv::CHANNELS;
        if constexpr (P::CONVS == 0) return LinearStage<P, 0>::X + SIZE_OF * i;
        if constexpr (Conv::GATHER)
            return Conv::X +
                   SIZE_OF * (channel * Conv::XPLANE + pixel / W * Conv::XPITCH + pixel % W);
        return Conv::X + channel / CHANNELS * Conv::XPLANE + SIZE_OF * (channel % CHANNELS) +
               16 * (pixel / W * Conv::XPITCH + pixel % W);
    }
};
