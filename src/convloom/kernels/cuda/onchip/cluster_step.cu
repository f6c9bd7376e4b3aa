// As onchip/step.cu, by blocks that share an image as a cluster (onchip/strip.cuh). Needs sm_90.
//
// Against step: a small batch keeps more of the GPU busy, as each of its images is several blocks'.
// Limit: as step, and the cluster's barriers.
#include "onchip/network.cuh"

template <class P>
__global__ void __launch_bounds__(P::THREADS, 1) CLUSTER_OF(P::CLUSTER)
    onchip_cluster_step(const f32* x, const i64* target, const u64* counter, const f32* dloss,
                const f32* p0, const f32* p1, const f32* p2, const f32* p3, const f32* p4,
                const f32* p5, const f32* p6, const f32* p7, const f32* p8, const f32* p9,
                const f32* p10, const f32* p11, const u8* packed, f32* slab, u8* kept, f32* losses,
                i32* ranks, f32* logits, f32 smoothing, i64 n, const void* images,
                const i64* labels, const f32* scales, const f32* shifts, const i64* order,
                const u8* draws, u64* clock, i64 place) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char smem_raw[];
    const Given given{x, target, counter, dloss,
                      {p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11},
                      packed, slab, kept, losses, ranks, logits, smoothing, n,
                      {images, labels, scales, shifts, order, draws, clock, place}};
    carry<P>(given, EveryTurn<P>(n), blockIdx.x == 0, smem_raw);
#endif
}
