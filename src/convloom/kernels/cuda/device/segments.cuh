// Many tensors in one launch: a block takes CHUNK elements of one of them.
#pragma once

#include "device/index.cuh"

// The block's share of a tensor: elements [first, last). It belongs to another tensor if `mine` is
// false.
struct Share {
    bool mine;
    i64 first, last;
};

// The share of block `block` of a tensor; `block` then counts from the next tensor on.
template <i64 CHUNK>
__device__ __forceinline__ Share share_of(i64& block, i64 size) {
    const i64 first = block * CHUNK;
    const Share share{block >= 0 && first < size, first, least(first + CHUNK, size)};
    block -= ceil_div(size, CHUNK);
    return share;
}
