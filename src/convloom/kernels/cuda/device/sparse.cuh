// Gradients of a 3x3 convolution that 2x2 pooling of stride 2 followed: of the four cells of a
// window only the winner has a gradient, so three products in four are left out.
//
// A winner shifts what its filter met by a row, a column, or both. Here that is an address: one
// operand lies in shared memory and is read from where the winner says, the other in registers.
// Nothing branches: a warp that jumps among pieces of code waits for instructions longer than it
// multiplies. A lane has four channels, four lanes the CHANNELS of a block; shared memory holds all
// values twice, in different banks, and neighbouring fours of lanes read different copies, so that
// they never meet. Served are stride 1 and one group; windows then meet a patch of 4x4 inputs.
#pragma once

#include "device/conv.cuh"
#include "device/reduce.cuh"
#include "device/tile.cuh"

template <class P>
struct Sparse {
    static constexpr int CHANNELS = 16;
    static constexpr int PLACE = 2 * CHANNELS;  // floats of a place in shared memory, both copies
    static constexpr i64 ROWS = Conv<P>::POOL_ROWS, COLS = Conv<P>::POOL_COLS;
    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::R == 3 && P::S == 3 && P::C % CHANNELS == 0 && P::K % 8 == 0);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);

    // Where the lane's channels lie within a place, in the copy that it reads.
    __device__ __forceinline__ static int lane_offset() {
        const int lane = int(threadIdx.x) % 32;
        return lane / 4 % 2 * CHANNELS + lane % 4 * 4;
    }
    // Writes four channels of a place, both copies.
    __device__ __forceinline__ static void put(f32* place, int four, const f32 (&value)[4]) {
        const float4 all = make_float4(value[0], value[1], value[2], value[3]);
        *reinterpret_cast<float4*>(place + 4 * four) = all;
        *reinterpret_cast<float4*>(place + CHANNELS + 4 * four) = all;
    }
};

__device__ __forceinline__ float4 four_at(const f32* from) {
    return *reinterpret_cast<const float4*>(from);
}

// sum += factor * value, four times.
__device__ __forceinline__ void add_product(f32 (&sum)[4], f32 factor, const float4& value) {
    sum[0] = fmaf(factor, value.x, sum[0]);
    sum[1] = fmaf(factor, value.y, sum[1]);
    sum[2] = fmaf(factor, value.z, sum[2]);
    sum[3] = fmaf(factor, value.w, sum[3]);
}
