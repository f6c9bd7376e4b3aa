// Where images and labels come from: the tensors of a batch, or, if FED, a data set in device memory,
// whose rows `order` names. Constants FED_C, FED_H ... say what its images are (device/batch.cuh).
#pragma once

#include "device/batch.cuh"

template <class P>
struct FedSet {
    static constexpr i64 C = P::FED_C, H = P::FED_H, W = P::FED_W, FLOATS = P::FED_FLOATS,
                         AUGMENT = P::FED_AUGMENT, PADDING = P::FED_PADDING,
                         REFLECT = P::FED_REFLECT;
};

// What a step is given of a data set; row clock[0] of `order` is its own.
struct Feeding {
    const void* images;
    const i64* labels;
    const f32 *scale, *shift;
    const i64* order;
    const u8* draws;
    u64* clock;
};

template <class P, bool FED = P::FED != 0>
struct Source {
    using Raw = f32;
    static constexpr int SIZE = int(P::CONV_C[0]) * int(P::CONV_H[0]) * int(P::CONV_W[0]);
    const f32* x;
    const i64* target;

    __device__ __forceinline__ Source(const f32* x, const i64* target, const Feeding&, i64)
        : x(x), target(target) {}
    // Element i of an image, as it lies in memory, and as the network takes it.
    __device__ __forceinline__ Raw raw(i64 image, int i) const { return x[image * SIZE + i]; }
    __device__ __forceinline__ f32 value(Raw raw, int) const { return raw; }
    __device__ __forceinline__ i64 label(i64 image) const { return target[image]; }
};

template <class P>
struct Source<P, true> {
    using Set = FedSet<P>;
    using Raw = typename DataSet<Set>::Raw;
    static constexpr int PLANE = int(Set::H * Set::W);
    static_assert(P::XROW != 0, "a data set holds images plane by plane");
    DataSet<Set> data;
    const i64* labels;
    const i64* order;

    __device__ __forceinline__ Source(const f32*, const i64*, const Feeding& fed, i64 n)
        : data{fed.images, fed.scale, fed.shift, fed.draws},
          labels(fed.labels),
          order(fed.order + i64(fed.clock[0]) * n) {}
    __device__ __forceinline__ Raw raw(i64 image, int i) const {
        const int pixel = i % PLANE;
        return data.raw(order[image], i / PLANE, pixel / int(Set::W), pixel % int(Set::W));
    }
    __device__ __forceinline__ f32 value(Raw raw, int i) const { return data.value(raw, i / PLANE); }
    __device__ __forceinline__ i64 label(i64 image) const { return labels[order[image]]; }
};
