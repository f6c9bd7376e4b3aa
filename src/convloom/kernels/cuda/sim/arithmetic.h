// Atomics, cached loads, and the arithmetic that CUDA offers without a header.
//
// Library functions are declared, not included: the compiler knows them by name. Results may differ
// from a GPU's in the last bits where CUDA's own functions are not correctly rounded.
#pragma once

// ---- atomics: blocks may run on several threads of the operating system at once

namespace convloom_sim {
template <class T>
struct Same {
    using type = T;
};
}  // namespace convloom_sim
// T, without taking part in deducing it: atomicAdd(&counter, 1) with an unsigned counter.
template <class T>
using convloom_sim_same = typename convloom_sim::Same<T>::type;

#define CONVLOOM_SIM_ATOMIC(NAME, BUILTIN)                    \
    template <class T>                                        \
    T NAME(T* place, convloom_sim_same<T> value) {           \
        return BUILTIN(place, value, __ATOMIC_RELAXED);       \
    }

CONVLOOM_SIM_ATOMIC(atomicSub, __atomic_fetch_sub)
CONVLOOM_SIM_ATOMIC(atomicAnd, __atomic_fetch_and)
CONVLOOM_SIM_ATOMIC(atomicOr, __atomic_fetch_or)
CONVLOOM_SIM_ATOMIC(atomicXor, __atomic_fetch_xor)
CONVLOOM_SIM_ATOMIC(atomicExch, __atomic_exchange_n)
CONVLOOM_SIM_ATOMIC(atomicAdd, __atomic_fetch_add)  // integers: sums of floats have no fixed order

template <class T>
T atomicCAS(T* place, convloom_sim_same<T> expected, convloom_sim_same<T> value) {
    __atomic_compare_exchange_n(place, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
template <class T>
T atomicMax(T* place, convloom_sim_same<T> value) {
    T seen = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(place, &seen, value, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
    return seen;
}
template <class T>
T atomicMin(T* place, convloom_sim_same<T> value) {
    T seen = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (value < seen && !__atomic_compare_exchange_n(place, &seen, value, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
    return seen;
}

// ---- loads and stores with a caching hint, which has no meaning here

template <class T>
T __ldg(const T* place) {
    return *place;
}
template <class T>
T __ldcs(const T* place) {
    return *place;
}
template <class T>
T __ldcg(const T* place) {
    return *place;
}
template <class T>
void __stcs(T* place, convloom_sim_same<T> value) {
    *place = value;
}
template <class T>
void __stcg(T* place, convloom_sim_same<T> value) {
    *place = value;
}

// ---- functions of the C library that CUDA declares by itself

extern "C" {
#define CONVLOOM_SIM_UNARY(NAME)      \
    double NAME(double) noexcept;     \
    float NAME##f(float) noexcept;
CONVLOOM_SIM_UNARY(exp)
CONVLOOM_SIM_UNARY(exp2)
CONVLOOM_SIM_UNARY(expm1)
CONVLOOM_SIM_UNARY(log)
CONVLOOM_SIM_UNARY(log2)
CONVLOOM_SIM_UNARY(log1p)
CONVLOOM_SIM_UNARY(sqrt)
CONVLOOM_SIM_UNARY(tanh)
CONVLOOM_SIM_UNARY(erf)
CONVLOOM_SIM_UNARY(floor)
CONVLOOM_SIM_UNARY(ceil)
CONVLOOM_SIM_UNARY(trunc)
CONVLOOM_SIM_UNARY(rint)
CONVLOOM_SIM_UNARY(fabs)
#define CONVLOOM_SIM_BINARY(NAME)             \
    double NAME(double, double) noexcept;     \
    float NAME##f(float, float) noexcept;
CONVLOOM_SIM_BINARY(fmax)
CONVLOOM_SIM_BINARY(fmin)
CONVLOOM_SIM_BINARY(pow)
CONVLOOM_SIM_BINARY(fmod)
CONVLOOM_SIM_BINARY(copysign)
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double nan(const char*) noexcept;
float nanf(const char*) noexcept;
int abs(int) noexcept;
long long llabs(long long) noexcept;
}

// CUDA's overloads for float of the functions above.
inline float exp(float x) { return expf(x); }
inline float log(float x) { return logf(x); }
inline float sqrt(float x) { return sqrtf(x); }
inline float fabs(float x) { return fabsf(x); }
inline float floor(float x) { return floorf(x); }
inline float ceil(float x) { return ceilf(x); }
inline float fmax(float x, float y) { return fmaxf(x, y); }
inline float fmin(float x, float y) { return fminf(x, y); }
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline long long abs(long long x) { return llabs(x); }

inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }

template <class A, class B>
constexpr auto min(A a, B b) {
    using T = decltype(a + b);
    return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
constexpr auto max(A a, B b) {
    using T = decltype(a + b);
    return T(a) < T(b) ? T(b) : T(a);
}

// ---- CUDA's own arithmetic. The _rn forms are never contracted, on a GPU as here.

namespace convloom_sim {
template <class To, class From>
To bits(From from) {
    return __builtin_bit_cast(To, from);
}
// The compiler must not fuse what stands on both sides of this.
template <class T>
T opaque(T value) {
    asm volatile("" : "+m"(value));
    return value;
}
}  // namespace convloom_sim

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return convloom_sim::opaque(x + y); }
inline float __fsub_rn(float x, float y) { return convloom_sim::opaque(x - y); }
inline float __fmul_rn(float x, float y) { return convloom_sim::opaque(x * y); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return convloom_sim::opaque(x + y); }
inline double __dmul_rn(double x, double y) { return convloom_sim::opaque(x * y); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline int __float_as_int(float x) { return convloom_sim::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return convloom_sim::bits<unsigned>(x); }
inline float __int_as_float(int x) { return convloom_sim::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return convloom_sim::bits<float>(x); }
inline long long __double_as_longlong(double x) { return convloom_sim::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return convloom_sim::bits<double>(x); }
inline int __float2int_rn(float x) { return int(rintf(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
    return unsigned((unsigned long long)x * y >> 32);
}
inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
