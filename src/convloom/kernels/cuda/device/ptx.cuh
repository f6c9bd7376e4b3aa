// All inline PTX: matrix fragments, tensor-core products, asynchronous copies and wide stores. Written against
// the PTX ISA; the host twin of each function is in sim/tensor.h. Shuffles and votes need no PTX.
//
// Needs sm_80, but for store_float4. Pointers named target or row point into shared memory, source into global memory.
#pragma once

#ifdef CONVLOOM_SIM
#include "../sim/tensor.h"
#else

// PTX addresses shared memory by 32-bit offsets.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The lane, read anew: what depends on it is not kept in registers across a long loop.
__device__ __forceinline__ int fresh_lane() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    __builtin_assume(lane >= 0 && lane < 32);
    return lane;
}

// ldmatrix: 1, 2 or 4 matrices of 8x8 16-bit elements. Lane 8 i + j gives the address of row j of
// matrix i, 16-byte aligned; lane l receives elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4
// (_trans: of column l / 4).
#define CONVLOOM_LDMATRIX_1(NAME, TRANS)                                                         \
    __device__ __forceinline__ void NAME(unsigned (&r)[1], const void* row) {                    \
        asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANS ".shared.b16 {%0}, [%1];"             \
                     : "=r"(r[0])                                                                \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }
#define CONVLOOM_LDMATRIX_2(NAME, TRANS)                                                         \
    __device__ __forceinline__ void NAME(unsigned (&r)[2], const void* row) {                    \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANS ".shared.b16 {%0, %1}, [%2];"         \
                     : "=r"(r[0]), "=r"(r[1])                                                    \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }
#define CONVLOOM_LDMATRIX_4(NAME, TRANS)                                                         \
    __device__ __forceinline__ void NAME(unsigned (&r)[4], const void* row) {                    \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                            \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }
CONVLOOM_LDMATRIX_1(ldmatrix_x1, "")
CONVLOOM_LDMATRIX_2(ldmatrix_x2, "")
CONVLOOM_LDMATRIX_4(ldmatrix_x4, "")
CONVLOOM_LDMATRIX_1(ldmatrix_x1_trans, ".trans")
CONVLOOM_LDMATRIX_2(ldmatrix_x2_trans, ".trans")
CONVLOOM_LDMATRIX_4(ldmatrix_x4_trans, ".trans")

// mma: d = a b + c for a 16x8 tile of float32, all 32 lanes together.
#define CONVLOOM_MMA(NAME, SHAPE)                                                                \
    __device__ __forceinline__ void NAME(float (&d)[4], const unsigned (&a)[4],                  \
                                         const unsigned (&b)[2], const float (&c)[4]) {          \
        asm volatile("mma.sync.aligned." SHAPE                                                   \
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"      \
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),         \
                       "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));                              \
    }
CONVLOOM_MMA(mma_m16n8k16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
CONVLOOM_MMA(mma_m16n8k16_f16, "m16n8k16.row.col.f32.f16.f16.f32")
CONVLOOM_MMA(mma_m16n8k8_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")

// float32 rounded to tf32: to nearest, ties away from zero.
__device__ __forceinline__ unsigned cvt_tf32(float x) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}

// Two float32 rounded to bfloat16 (to nearest, ties to even), `low` in the lower half.
__device__ __forceinline__ unsigned cvt_bf16x2(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// a if `first` is not 0, else b; compilers make no index of it.
__device__ __forceinline__ float choose(int first, float a, float b) {
    float chosen;
    asm("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
        : "=f"(chosen)
        : "f"(a), "f"(b), "r"(first));
    return chosen;
}

// Four bytes picked by the four lower digits of `selector` (hexadecimal): 0 to 3 are those of a,
// 4 to 7 those of b, 8 to f the sign bits of these, eight times each.
__device__ __forceinline__ unsigned prmt(unsigned a, unsigned b, unsigned selector) {
    unsigned picked;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(a), "r"(b), "r"(selector));
    return picked;
}

// Four floats to global memory, `to` a multiple of 16 bytes, in one access: left to themselves,
// compilers make four of it where a rectifier or a mask comes before.
__device__ __forceinline__ void store_float4(float* to, float x, float y, float z, float w) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}
__device__ __forceinline__ void store_float4(float* to, const float4& four) {
    store_float4(to, four.x, four.y, four.z, four.w);
}

// The greater of two, or NaN if one of them is.
__device__ __forceinline__ float max_nan(float a, float b) {
    float greater;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
    return greater;
}

// cp.async: copies of 4 or 16 bytes, both addresses so aligned, done once cp_async_wait has let
// their group pass and a barrier has told the other threads. _zfill writes zeros unless `read`.
__device__ __forceinline__ void cp_async_4(void* target, const void* source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(target)),
                 "l"(source)
                 : "memory");
}
__device__ __forceinline__ void cp_async_16(void* target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(target)),
                 "l"(source)
                 : "memory");
}
__device__ __forceinline__ void cp_async_4_zfill(void* target, const void* source, bool read) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(target)),
                 "l"(source), "r"(read ? 4 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_16_zfill(void* target, const void* source, bool read) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
                 "l"(source), "r"(read ? 16 : 0)
                 : "memory");
}
// Closes a group of copies; cp_async_wait<N> lets all but the latest N groups finish.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
