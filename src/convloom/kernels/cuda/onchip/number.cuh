// bfloat16: two in a word, the lower element first.
#pragma once

#include "device/ptx.cuh"
#include "device/types.cuh"

using Bytes = u8;
using Bf16 = unsigned short;

__device__ __forceinline__ f32 bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ f32 bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ Bf16 bf16_of(f32 x) { return Bf16(cvt_bf16x2(x, 0.0f) & 0xffffu); }

// A word or more of shared memory.
template <class Word>
__device__ __forceinline__ Word& at(Bytes* place) {
    return *reinterpret_cast<Word*>(place);
}
template <class Word>
__device__ __forceinline__ const Word& at(const Bytes* place) {
    return *reinterpret_cast<const Word*>(place);
}
