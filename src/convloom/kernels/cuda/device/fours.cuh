// Four neighbouring elements in one access of 16 bytes, and what is left at the end of a tensor.
//
// Addresses are multiples of 16 bytes: tensors begin at such, and threads step by four.
#pragma once

#include "device/ptx.cuh"
#include "device/types.cuh"

struct Four {
    f32 at[4];
};

// Elements [0, min(left, 4)) of a tensor's rest, the others 0.
__device__ __forceinline__ Four load_four(const f32* from, i64 left) {
    if (left >= 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        return {{four.x, four.y, four.z, four.w}};
    }
    Four four = {};
    for (int v = 0; v < 3; ++v)
        if (v < left) four.at[v] = from[v];
    return four;
}

__device__ __forceinline__ void store_four(f32* to, const Four& four, i64 left) {
    if (left >= 4) {
        store_float4(to, four.at[0], four.at[1], four.at[2], four.at[3]);
        return;
    }
    for (int v = 0; v < 3; ++v)
        if (v < left) to[v] = four.at[v];
}
