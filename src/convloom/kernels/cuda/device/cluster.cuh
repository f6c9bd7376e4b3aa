// Blocks of a cluster: a barrier for all of them, and reads of one another's shared memory. Written
// against the PTX ISA (barrier.cluster, mapa); the host twins are in sim/tensor.h. Needs sm_90.
#pragma once

#include "device/ptx.cuh"

// Of a kernel whose blocks are clusters of so many.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CLUSTER_OF(blocks)
#else
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
#endif

#if !defined(CONVLOOM_SIM) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)

// What threads of the cluster wrote to shared memory before it, all may read behind it.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// A barrier in two halves: what threads read before the first, all may write behind the second. It
// tells nothing of what they wrote, and so waits for none of it.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The i-th number from `own` on, in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ float cluster_read(const float* own, int rank, int i = 0) {
    unsigned address;
    float value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(shared_address(own)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];"
                 : "=f"(value)
                 : "r"(address + 4u * unsigned(i))
                 : "memory");
    return value;
}

#elif !defined(CONVLOOM_SIM)

// Never called: no launch for such a GPU has clusters.
__device__ __forceinline__ void cluster_barrier() { __trap(); }
__device__ __forceinline__ void cluster_arrive() { __trap(); }
__device__ __forceinline__ void cluster_wait() { __trap(); }
__device__ __forceinline__ float cluster_read(const float*, int, int = 0) {
    __trap();
    return 0.0f;
}

#endif
