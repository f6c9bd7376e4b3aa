// CUDA's additions to C++: specifiers, vector types, and the indices of a thread.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

// The one specifier that makes a variable inside a function static *and* may follow `extern` is
// thread_local; and since a block's fibers share a thread of the operating system, thread_local
// memory is shared by exactly the block. constinit refuses types with a constructor, as CUDA does.
#define __shared__ constinit thread_local

// Alignments are those of the CUDA programming guide ("Built-in vector types"): a misaligned
// vector access must be as wrong here as it is there.
#define CONVLOOM_SIM_VECTORS(T, NAME, ALIGN2, ALIGN4)                                        \
    struct __attribute__((aligned(ALIGN2))) NAME##2 {                                        \
        T x, y;                                                                              \
    };                                                                                       \
    struct NAME##3 {                                                                         \
        T x, y, z;                                                                           \
    };                                                                                       \
    struct __attribute__((aligned(ALIGN4))) NAME##4 {                                        \
        T x, y, z, w;                                                                        \
    };                                                                                       \
    __forceinline__ NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                      \
    __forceinline__ NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }              \
    __forceinline__ NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CONVLOOM_SIM_VECTORS(unsigned, uint, 8, 16)
CONVLOOM_SIM_VECTORS(float, float, 8, 16)
CONVLOOM_SIM_VECTORS(int, int, 8, 16)
CONVLOOM_SIM_VECTORS(double, double, 16, 16)
CONVLOOM_SIM_VECTORS(unsigned char, uchar, 2, 4)
CONVLOOM_SIM_VECTORS(signed char, char, 2, 4)
CONVLOOM_SIM_VECTORS(short, short, 4, 8)
CONVLOOM_SIM_VECTORS(unsigned short, ushort, 4, 8)
CONVLOOM_SIM_VECTORS(long long, longlong, 16, 16)
CONVLOOM_SIM_VECTORS(unsigned long long, ulonglong, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Variables, not macros, so that a debugger can print them. The runtime sets them each time that a
// fiber goes on.
#define CONVLOOM_SIM_INDEX extern "C" __thread __attribute__((visibility("default")))
CONVLOOM_SIM_INDEX uint3 threadIdx;
CONVLOOM_SIM_INDEX uint3 blockIdx;
CONVLOOM_SIM_INDEX dim3 blockDim;
CONVLOOM_SIM_INDEX dim3 gridDim;
constexpr int warpSize = 32;
