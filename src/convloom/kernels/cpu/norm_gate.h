// What passes the activation behind a normalisation, for the channels of one block.
//
// Its output tells, which is read (the argument y); or, with P::AGAIN, is computed again as
// norm_apply does, from x - mean and the arguments 1/std and, with P::AFFINE, weight and bias: less
// to read than y.
#pragma once

#include "activation.h"
#include "rows.h"

namespace convloom {

template <class P, int V>
struct NormGate {
    const f32* y;
    vec scale[V], shift[V];

    // `at` is the chunk's first element and k the block's first channel.
    template <class Block>
    CL_INLINE NormGate make(const Arg* args, i64 at, i64 k, Block block) {
        NormGate gate;
        if constexpr (P::ACT != NONE && P::AGAIN == 0) gate.y = (const f32*)args[0].address + at;
        if constexpr (P::ACT != NONE && P::AGAIN != 0)
            CL_UNROLL for (int j = 0; j < V; ++j) {
                gate.scale[j] = block.load((const f32*)args[0].address + k, j);
                gate.shift[j] = zero();
                if constexpr (P::AFFINE != 0) {
                    gate.scale[j] *= block.load((const f32*)args[1].address + k, j);
                    gate.shift[j] = block.load((const f32*)args[2].address + k, j);
                }
            }
        return gate;
    }

    // dy at `place` of the chunk, vector j of the block.
    template <class Block>
    __attribute__((always_inline)) vec pass(vec dy, vec centred, i64 place, int j,
                                            Block block) const {
        if constexpr (P::ACT == NONE)
            return dy;
        else if constexpr (P::AGAIN != 0)
            return passed<P>(dy, activated<P>(fma(centred, scale[j], shift[j])));
        else
            return passed<P>(dy, block.load(y + place, j));
    }
};

}  // namespace convloom
