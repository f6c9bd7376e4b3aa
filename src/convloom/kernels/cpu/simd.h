// Vectors of CL_LANES floats through the vector extensions that g++ and clang share.
//
// CL_LANES follows the target's feature macros (16, 8 or 4); -DCL_LANES=N overrides it, which is
// how tests cover the narrow forms. Nothing here needs an intrinsic header: where a target has
// masked moves they are reached through compiler builtins, and a plain twin serves the rest.
// Compares and selects follow IEEE: any compare with NaN is false, so relu and max pass NaN on.
#pragma once

#include "abi.h"

#ifndef CL_LANES
#if defined(__AVX512F__)
#define CL_LANES 16
#elif defined(__AVX__)
#define CL_LANES 8
#else
#define CL_LANES 4
#endif
#endif

#define CL_INLINE static inline __attribute__((always_inline))

// Full unrolling of a loop whose bounds are constants: keeps arrays of vectors in registers.
#if defined(__clang__)
#define CL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CL_UNROLL _Pragma("GCC unroll 64")
#endif

// Hides where a running pointer comes from. A register tile has no register to spare, and without
// this compilers keep what one step loaded for the next one, and spill the sums.
#define CL_OPAQUE(pointer) asm("" : "+r"(pointer))

namespace convloom {

constexpr int LANES = CL_LANES;
// Vector registers that a register tile may count on.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int VECTOR_REGISTERS = 32;
#else
constexpr int VECTOR_REGISTERS = 16;
#endif

typedef float vec __attribute__((vector_size(4 * CL_LANES)));
typedef int ivec __attribute__((vector_size(4 * CL_LANES)));
typedef unsigned char bvec __attribute__((vector_size(CL_LANES)));
typedef float vec_unaligned __attribute__((vector_size(4 * CL_LANES), aligned(4), may_alias));
typedef int ivec_unaligned __attribute__((vector_size(4 * CL_LANES), aligned(4), may_alias));
typedef unsigned char bvec_unaligned __attribute__((vector_size(CL_LANES), aligned(1), may_alias));

CL_INLINE vec load(const f32* p) { return *(const vec_unaligned*)p; }
CL_INLINE void store(f32* p, vec v) { *(vec_unaligned*)p = v; }
CL_INLINE vec load_aligned(const f32* p) { return *(const vec*)p; }
CL_INLINE void store_aligned(f32* p, vec v) { *(vec*)p = v; }
CL_INLINE ivec load_i32(const i32* p) { return *(const ivec_unaligned*)p; }
CL_INLINE void store_i32(i32* p, ivec v) { *(ivec_unaligned*)p = v; }

CL_INLINE vec zero() { return vec{}; }

CL_INLINE vec broadcast(f32 f) {
#if CL_LANES == 16
    return vec{f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f};
#elif CL_LANES == 8
    return vec{f, f, f, f, f, f, f, f};
#else
    return vec{f, f, f, f};
#endif
}

CL_INLINE ivec broadcast_i32(i32 i) { return ivec{} + i; }

// {0, 1, 2, ...}
CL_INLINE ivec lane_index() {
#if CL_LANES == 16
    return ivec{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif CL_LANES == 8
    return ivec{0, 1, 2, 3, 4, 5, 6, 7};
#else
    return ivec{0, 1, 2, 3};
#endif
}

// a * b + c in one expression, so that every compiler contracts it where the target has FMA.
CL_INLINE vec fma(vec a, vec b, vec c) { return a * b + c; }

CL_INLINE vec select(ivec mask, vec yes, vec no) { return mask ? yes : no; }
CL_INLINE ivec select_i32(ivec mask, ivec yes, ivec no) { return mask ? yes : no; }

// 0 where x <= 0, else x: NaN passes.
CL_INLINE vec relu(vec x) { return select(x <= zero(), zero(), x); }

// g where not a <= 0, else 0: the gradient of relu at output (or input) a; NaN in a passes g.
CL_INLINE vec relu_mask(vec a, vec g) { return select(a <= zero(), zero(), g); }

// Where a candidate replaces the best so far in a maximum: larger, or NaN (the last NaN wins).
CL_INLINE ivec replaces(vec candidate, vec best) {
    return (candidate > best) | (candidate != candidate);
}

CL_INLINE vec vmax(vec best, vec candidate) {
    return select(replaces(candidate, best), candidate, best);
}

// Sum of all lanes by halving: the same tree for every width's pairs of neighbours.
CL_INLINE f32 horizontal_sum(vec v) {
    f32 lanes[LANES];
    store(lanes, v);
    CL_UNROLL for (int half = LANES / 2; half > 0; half /= 2)
        CL_UNROLL for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

// The first n lanes (0 <= n <= LANES) from memory, the others zero; reads nothing beyond them.
CL_INLINE vec load_partial(const f32* p, long n) {
#if CL_LANES == 16 && defined(__AVX512F__)
    return __builtin_ia32_loadups512_mask(p, zero(), (unsigned short)((1u << n) - 1));
#else
    vec v = zero();
    for (long i = 0; i < n; i++) v[i] = p[i];
    return v;
#endif
}

// Writes the first n lanes (0 <= n <= LANES), touches nothing beyond them.
CL_INLINE void store_partial(f32* p, vec v, long n) {
#if CL_LANES == 16 && defined(__AVX512F__)
    __builtin_ia32_storeups512_mask(p, v, (unsigned short)((1u << n) - 1));
#else
    for (long i = 0; i < n; i++) p[i] = v[i];
#endif
}

// load or load_partial as n (any value, negative counts as 0) leaves lanes.
CL_INLINE vec load_tail(const f32* p, long n) {
    return n >= LANES ? load(p) : load_partial(p, n > 0 ? n : 0);
}

CL_INLINE ivec load_i32_tail(const i32* p, long n) {
    if (n >= LANES) return load_i32(p);
    ivec v{};
    for (long i = 0; i < n; i++) v[i] = p[i];
    return v;
}

CL_INLINE void store_tail(f32* p, vec v, long n) {
    if (n >= LANES)
        store(p, v);
    else if (n > 0)
        store_partial(p, v, n);
}

// The low byte of each lane.
CL_INLINE void store_bytes(u8* p, ivec v, long n) {
#if CL_LANES == 16 && defined(__AVX512F__)
    typedef char chars __attribute__((vector_size(16)));
    bvec b = (bvec)__builtin_ia32_pmovdb512_mask(v, chars{}, (unsigned short)0xffff);
#else
    bvec b = __builtin_convertvector(v, bvec);
#endif
    if (n >= LANES)
        *(bvec_unaligned*)p = b;
    else
        for (long i = 0; i < n; i++) p[i] = b[i];
}

CL_INLINE ivec load_bytes(const u8* p) {
    return __builtin_convertvector(*(const bvec_unaligned*)p, ivec);
}

CL_INLINE i64 min(i64 a, i64 b) { return a < b ? a : b; }
CL_INLINE i64 max(i64 a, i64 b) { return a > b ? a : b; }
constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
constexpr i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }

CL_INLINE void fill_zero(f32* p, i64 n) { __builtin_memset(p, 0, (u64)n * sizeof(f32)); }
CL_INLINE void copy(f32* to, const f32* from, i64 n) {
    __builtin_memcpy(to, from, (u64)n * sizeof(f32));
}

}  // namespace convloom
