// Many networks of one kind in one launch: blocks are shared out to them, some to each. What a member
// has of its own lies `stride` bytes behind what the member before it has, so the addresses of a
// launch are those of the first member.
#pragma once

#include "device/types.cuh"

// clock[LEFT] is 1 for a member that has left off, whose blocks do nothing.
static constexpr int LEFT = 3;

struct Member {
    i64 number, offset;
    i64 block;  // of this member's `blocks`

    __device__ __forceinline__ Member(i64 blocks, i64 stride)
        : number(blockIdx.x / u32(blocks)), offset(number * stride),
          block(blockIdx.x % u32(blocks)) {}
    // The member's own tensor, from that of the first member.
    template <class T>
    __device__ __forceinline__ T* operator()(T* tensor) const {
        return tensor == nullptr ? nullptr
                                 : reinterpret_cast<T*>(reinterpret_cast<u64>(tensor) + offset);
    }
};
