// Convolution, bias, activation (ACT) and 2x2 max-pooling of stride 2 (POOL) in one kernel.
//
// One thread an output of the last op, in its memory order; with a pool it computes the four
// cells of its window and keeps the winner and its place 2*dy + dx (device/pool.cuh says who wins).
// Against naive: what lies between the ops is neither stored nor read again.
// Limit: as naive, less 8 bytes an element for every op that was fused.
#include "device/activation.cuh"
#include "device/conv.cuh"
#include "device/pool.cuh"

template <class P>
__device__ f32 conv2d_fused_cell(const f32* x, const f32* w, const f32* bias, const Place& at) {
    f32 y = Conv<P>::output(x, w, at);
    if (P::BIAS != 0) y += bias[at.channel];
    return activated<P>(y);
}

template <class P>
__global__ void conv2d_fprop_fused(const f32* x, const f32* w, const f32* bias, f32* y, u8* index,
                                   i64 n) {
    const i64 i = global_thread();
    if constexpr (P::POOL == 0) {
        if (i >= n * Conv<P>::Y_SIZE) return;
        y[i] = conv2d_fused_cell<P>(x, w, bias, Conv<P>::y_place(i));
    } else {
        if (i >= n * Conv<P>::POOLED_SIZE) return;
        Place at = Conv<P>::pooled_place(i);
        at.row *= 2, at.col *= 2;
        f32 best = conv2d_fused_cell<P>(x, w, bias, at);
        i32 winner = 0;
        for (i32 cell = 1; cell < 4; ++cell) {
            const Place here{at.image, at.channel, at.row + cell / 2, at.col + cell % 2};
            const f32 value = conv2d_fused_cell<P>(x, w, bias, here);
            if (replaces(value, best)) {
                best = value;
                winner = cell;
            }
        }
        y[i] = best;
        index[i] = u8(winner);
    }
}
