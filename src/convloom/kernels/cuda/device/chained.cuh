// Kernels that a graph chains: each begins while the one before it still runs (programmatic dependent
// launch). Written against the PTX ISA (griddepcontrol). Both do nothing on GPUs before compute
// capability 9.0 and in the simulator, where kernels run one after the other.
//
// Every thread of a kernel of a chain calls await_before, before it reads what the kernel before wrote
// and before it writes what that one or any earlier one reads. Since all of them do, whoever has
// waited has waited for all kernels before it, not for one alone.
//
// What a kernel may read without waiting, beside what no kernel writes: what was written two launches
// back or earlier, if the kernel in between calls begin_next behind its own await_before: then this one
// begins after that wait. Such reads must pass by the first-level cache (volatile), which may hold
// what was there before.
#pragma once

#if !defined(CONVLOOM_SIM) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The kernel behind this one may begin when all blocks have called it, or have ended.
__device__ __forceinline__ void begin_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the kernel before this one has ended, and what it wrote can be read.
__device__ __forceinline__ void await_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#else

__device__ __forceinline__ void begin_next() {}
__device__ __forceinline__ void await_before() {}

#endif
