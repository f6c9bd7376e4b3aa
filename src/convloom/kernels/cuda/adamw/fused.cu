// m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2;
// p = p * (1 - lr * decay) - lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)
//
// Up to eight parameters a launch, COUNT of them given; a block takes CHUNK elements of one,
// neighbouring threads neighbouring elements. New tensors may be the old.
// Against naive: one launch for eight.
// Limit: 28 bytes of memory traffic an element.
#include "device/segments.cuh"
#include "device/update.cuh"

template <class P>
__device__ __forceinline__ void adamw_segment(i64& block, const f64* hyper, const f64* norm,
                                              const f32* p, const f32* g, const f32* m,
                                              const f32* v, f32* new_p, f32* new_m, f32* new_v,
                                              i64 size, f32 rate, f32 decay) {
    const Share share = share_of<P::CHUNK>(block, size);
    if (!share.mine) return;
    const AdamwRule<P> rule(hyper, norm, rate, decay);
    for (i64 i = share.first + threadIdx.x; i < share.last; i += blockDim.x) {
        f32 parameter = p[i], first = m[i], second = v[i];
        rule.update(parameter, g[i], first, second);
        new_p[i] = parameter;
        new_m[i] = first;
        new_v[i] = second;
    }
}

#define ADAMW_PARAMETER(i)                                                                     \
    const f32 *p##i, const f32 *g##i, const f32 *m##i, const f32 *v##i, f32 *new_p##i,         \
        f32 *new_m##i, f32 *new_v##i, i64 size##i, f32 rate##i, f32 decay##i
#define ADAMW_UPDATE(i)                                                                        \
    if constexpr (P::COUNT > i)                                                                \
    adamw_segment<P>(block, hyper, norm, p##i, g##i, m##i, v##i, new_p##i, new_m##i, new_v##i, \
                     size##i, rate##i, decay##i)

template <class P>
__global__ void adamw_fused(const f64* hyper, const f64* norm, ADAMW_PARAMETER(0),
                            ADAMW_PARAMETER(1), ADAMW_PARAMETER(2), ADAMW_PARAMETER(3),
                            ADAMW_PARAMETER(4), ADAMW_PARAMETER(5), ADAMW_PARAMETER(6),
                            ADAMW_PARAMETER(7)) {
    i64 block = blockIdx.x;
    ADAMW_UPDATE(0);
    ADAMW_UPDATE(1);
    ADAMW_UPDATE(2);
    ADAMW_UPDATE(3);
    ADAMW_UPDATE(4);
    ADAMW_UPDATE(5);
    ADAMW_UPDATE(6);
    ADAMW_UPDATE(7);
}
