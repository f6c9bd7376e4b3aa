// Vector compares as integers, one bit a lane, to walk the lanes that hold.
#pragma once

#include "simd.h"

namespace convloom {

// Bit i is set where lane i of a compare's result is true.
CL_INLINE u64 mask_bits(ivec mask) {
#if CL_LANES == 16 && defined(__AVX512DQ__) && !defined(__clang__)
    return (unsigned short)__builtin_ia32_cvtd2mask512(mask);
#elif CL_LANES == 8 && defined(__AVX__)
    return (unsigned)__builtin_ia32_movmskps256((vec)mask);
#else
    u64 bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (u64)(mask[i] & 1) << i;
    return bits;
#endif
}

}  // namespace convloom
