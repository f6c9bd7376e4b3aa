// Rows of channels: what the kernels of normalisation share.
//
// Images lie as rows [pixel][channel]; a chunk is consecutive rows of one image, and an item. For
// batch normalisation all images are one. P::TAIL is channels mod 16, so that one compiled kernel
// serves every number of channels of that remainder.
#pragma once

#include "simd.h"

namespace convloom {

struct Rows {
    i64 image;
    i64 first;  // rows [first, last) of all images together
    i64 last;
};

// Chunk `item` of images of `rows` rows, each cut into `chunks`.
CL_INLINE Rows chunk_of_rows(long item, i64 rows, i64 chunks) {
    const i64 image = item / chunks, chunk = item % chunks;
    return {image, image * rows + rows * chunk / chunks, image * rows + rows * (chunk + 1) / chunks};
}

template <int V, int LAST>
struct Block {
    static constexpr int VECTORS = V;

    // Vector j of a block that begins at p; the last of it may be a part.
    static vec load(const f32* p, int j) {
        return LAST == LANES || j < V - 1 ? convloom::load(p + j * LANES)
                                          : load_partial(p + j * LANES, LAST);
    }
    static void store(f32* p, int j, vec v) {
        if (LAST == LANES || j < V - 1)
            convloom::store(p + j * LANES, v);
        else
            store_partial(p + j * LANES, v, LAST);
    }
};

// Calls body(first channel, Block) for blocks of four vectors, then of one, then for the tail.
template <class P, class Body>
CL_INLINE void channel_blocks(i64 channels, Body body) {
    constexpr int tail = P::TAIL % LANES;
    i64 k = 0;
    for (; k + 4 * LANES <= channels; k += 4 * LANES) body(k, Block<4, LANES>{});
    for (; k + LANES <= channels; k += LANES) body(k, Block<1, LANES>{});
    if constexpr (tail != 0) body(k, Block<1, tail>{});
}

}  // namespace convloom
