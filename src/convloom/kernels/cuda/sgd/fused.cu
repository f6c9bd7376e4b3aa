// g = scale * g + decay * p;  v = momentum * v + g;  p = p - rate * (v or g + momentum * v)
//
// Up to eight parameters a launch, COUNT of them given; a block takes CHUNK elements of one,
// neighbouring threads neighbouring elements. new_p may be p, new_v v.
// Against naive: one launch for eight.
// Limit: 20 bytes of memory traffic an element.
#include "device/segments.cuh"
#include "device/update.cuh"

template <class P>
__device__ __forceinline__ void sgd_segment(i64& block, const f64* hyper, const f64* norm,
                                            const f32* p, const f32* g, const f32* v, f32* new_p,
                                            f32* new_v, i64 size, f32 rate, f32 decay) {
    const Share share = share_of<P::CHUNK>(block, size);
    if (!share.mine) return;
    const SgdRule<P> rule(hyper, norm, rate, decay);
    for (i64 i = share.first + threadIdx.x; i < share.last; i += blockDim.x) {
        f32 parameter = p[i], velocity = v[i];
        rule.update(parameter, g[i], velocity);
        new_p[i] = parameter;
        new_v[i] = velocity;
    }
}

#define SGD_PARAMETER(i)                                                             \
    const f32 *p##i, const f32 *g##i, const f32 *v##i, f32 *new_p##i, f32 *new_v##i, \
        i64 size##i, f32 rate##i, f32 decay##i
#define SGD_UPDATE(i)                                                                        \
    if constexpr (P::COUNT > i)                                                              \
    sgd_segment<P>(block, hyper, norm, p##i, g##i, v##i, new_p##i, new_v##i, size##i, rate##i, \
                   decay##i)

template <class P>
__global__ void sgd_fused(const f64* hyper, const f64* norm, SGD_PARAMETER(0), SGD_PARAMETER(1),
                          SGD_PARAMETER(2), SGD_PARAMETER(3), SGD_PARAMETER(4), SGD_PARAMETER(5),
                          SGD_PARAMETER(6), SGD_PARAMETER(7)) {
    i64 block = blockIdx.x;
    SGD_UPDATE(0);
    SGD_UPDATE(1);
    SGD_UPDATE(2);
    SGD_UPDATE(3);
    SGD_UPDATE(4);
    SGD_UPDATE(5);
    SGD_UPDATE(6);
    SGD_UPDATE(7);
}
