// Where images and labels come from: the tensors of a batch, or, if FED, a data set in device memory,
// whose samples `order` names. Constants FED_C, FED_H ... say what its images are (device/batch.cuh).
//
// A pixel of a data set waits for its sample's number, and that for the clock. So each is asked for
// long before it is used: the clock first of all, the samples one image ahead of their pixels.
#pragma once

#include "device/batch.cuh"

template <class P>
struct FedSet {
    static constexpr i64 C = P::FED_C, H = P::FED_H, W = P::FED_W, FLOATS = P::FED_FLOATS,
                         AUGMENT = P::FED_AUGMENT, PADDING = P::FED_PADDING,
                         REFLECT = P::FED_REFLECT;
};

// What a step is given of a data set. Its row of `order` is in the clock. Where steps are CHAINED, only
// the first one of a graph, at `place` 0, finds it there in time; those behind it count from that row,
// which the first one has left (fed.py).
struct Feeding {
    const void* images;
    const i64* labels;
    const f32 *scale, *shift;
    const i64* order;
    const u8* draws;
    u64* clock;
    i64 place;

    template <class P>
    __device__ __forceinline__ u64 row() const {
        if constexpr (P::CHAINED == 0) return clock[0];
        const volatile u64* now = clock;  // device/chained.cuh says why
        return place == 0 ? now[0] : now[2] + u64(place);
    }
};

template <class P, bool FED = P::FED != 0>
struct Source {
    using Raw = f32;
    static constexpr int SIZE = int(P::CONV_C[0]) * int(P::CONV_H[0]) * int(P::CONV_W[0]);
    const f32* x;
    const i64* target;

    __device__ __forceinline__ Source(const f32* x, const i64* target, const Feeding&)
        : x(x), target(target) {}
    // The sample that an image of the batch is.
    __device__ __forceinline__ i64 sample(i64 image, i64) const { return image; }
    // Element i of a sample, as it lies in memory, and as the network takes it.
    __device__ __forceinline__ Raw raw(i64 sample, int i) const { return x[sample * SIZE + i]; }
    __device__ __forceinline__ f32 value(Raw raw, int) const { return raw; }
    __device__ __forceinline__ i64 label(i64 sample) const { return target[sample]; }
};

template <class P>
struct Source<P, true> {
    using Set = FedSet<P>;
    using Raw = typename DataSet<Set>::Raw;
    static constexpr int CHANNELS = int(Set::C), PLANE = int(Set::H * Set::W);
    // Few channels have their scale and shift in registers.
    static constexpr int KEPT = CHANNELS <= 4 && Set::FLOATS == 0 ? CHANNELS : 0;
    static_assert(P::XROW != 0, "a data set holds images plane by plane");
    DataSet<Set> data;
    const i64* labels;
    const i64* order;
    u64 row;
    f32 scale[KEPT + 1], shift[KEPT + 1];

    __device__ __forceinline__ Source(const f32*, const i64*, const Feeding& fed)
        : data{fed.images, fed.scale, fed.shift, fed.draws},
          labels(fed.labels),
          order(fed.order),
          row(fed.template row<P>()) {
#pragma unroll
        for (int c = 0; c < KEPT; ++c) {
            scale[c] = fed.scale[c];
            shift[c] = fed.shift[c];
        }
    }
    __device__ __forceinline__ i64 sample(i64 image, i64 n) const {
        // Past the first-level cache: the host writes there between graphs, and a kernel of a chain
        // may begin where an older row still lies.
        const volatile i64* numbers = order;
        return numbers[i64(row) * n + image];
    }
    __device__ __forceinline__ Raw raw(i64 sample, int i) const {
        if constexpr (Set::AUGMENT == 0)
            return static_cast<const Raw*>(data.images)[sample * (CHANNELS * PLANE) + i];
        const int pixel = i % PLANE;
        return data.raw(sample, i / PLANE, pixel / int(Set::W), pixel % int(Set::W));
    }
    __device__ __forceinline__ f32 value(Raw raw, int i) const {
        if constexpr (KEPT == 0) return data.value(raw, i / PLANE);
        f32 factor = scale[0], offset = shift[0];
#pragma unroll
        for (int c = 1; c < KEPT; ++c)
            if (i >= c * PLANE) factor = scale[c], offset = shift[c];
        return DataSet<Set>::normalised(raw, factor, offset);
    }
    __device__ __forceinline__ i64 label(i64 sample) const { return labels[sample]; }
};

// The samples that a block's images are; those behind the batch's last one are copies of it. No data
// set has as many as 2^32 (resident.py), and no batch.
template <class P>
struct Samples {
    static constexpr int IMAGES = int(P::IMAGES);
    u32 of[IMAGES] = {};

    __device__ __forceinline__ void ask(const Source<P>& source, i64 first, i64 n) {
#pragma unroll
        for (int m = 0; m < IMAGES; ++m) of[m] = u32(source.sample(least(first + m, n - 1), n));
    }
    __device__ __forceinline__ i64 operator[](int image) const {
        u32 found = of[0];
#pragma unroll
        for (int m = 1; m < IMAGES; ++m)
            if (image >= m) found = of[m];
        return found;
    }
};
