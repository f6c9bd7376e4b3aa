// Copies of any number of bytes from global to shared memory by the copy engine, which end with a
// barrier in shared memory. Written against the PTX ISA (cp.async.bulk, mbarrier); the host twins are in
// sim/tensor.h. Needs sm_90.
//
// One thread does it all: bulk_open for each barrier, bulk_opened once behind them, any copies,
// bulk_close behind a barrier's last one, bulk_wait, as often as it likes. What was copied the other
// threads may read behind a __syncthreads that follows the wait. Addresses and sizes are multiples of
// 16 bytes.
#pragma once

#include "device/ptx.cuh"
#include "device/types.cuh"

#if !defined(CONVLOOM_SIM) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)

__device__ __forceinline__ void bulk_open(u64* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
                 : "memory");
}
// Barriers can be seen by the copy engine.
__device__ __forceinline__ void bulk_opened() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bulk_copy(u64* barrier, void* target, const void* source,
                                          int nbytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %3;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%0];" ::"r"(
            shared_address(barrier)),
        "r"(shared_address(target)), "l"(__cvta_generic_to_global(source)), "r"(nbytes)
        : "memory");
}
__device__ __forceinline__ void bulk_close(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
__device__ __forceinline__ void bulk_wait(u64* barrier) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier))
        : "memory");
}

#elif !defined(CONVLOOM_SIM)

// Never called: no kernel for such a GPU is BULK.
__device__ __forceinline__ void bulk_open(u64*) { __trap(); }
__device__ __forceinline__ void bulk_opened() { __trap(); }
__device__ __forceinline__ void bulk_copy(u64*, void*, const void*, int) { __trap(); }
__device__ __forceinline__ void bulk_close(u64*) { __trap(); }
__device__ __forceinline__ void bulk_wait(u64*) { __trap(); }

#endif
