// Partial sums of db[k] = sum over samples and positions of dy[n,k,i]
//
// Chunk c of the rows writes K sums at partial + c * round_up(K, 4), which sum_partials adds up.
// Channels last (ROW = 0; a row is a position): the lanes of a warp stand side by side on the
// channels, several rows deep where channels are few; planes (ROW = 1; a row is a sample): a warp
// walks along each plane. Lanes are added by shuffles, warps through shared memory.
// Against naive: all loads of a warp are neighbours, and the batch makes more blocks.
// Limit: 4 bytes of memory traffic an element.
#include "device/index.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void bias_grad_warp(const f32* dy, f32* partial, i64 rows, i64 chunk) {
    constexpr int WARPS = 8, ACROSS = P::ROW != 0 ? 1 : row_lanes(P::K), DOWN = 32 / ACROSS;
    constexpr i64 BLOCKS = ceil_div(P::K, ACROSS);  // of channels
    __shared__ f32 part[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 number = blockIdx.x / BLOCKS, k = blockIdx.x % BLOCKS * ACROSS + lane % ACROSS;
    const i64 last = least((number + 1) * chunk, rows);
    f32 sum = 0.0f;
    if (P::ROW != 0) {
        for (i64 row = number * chunk + warp; row < last; row += WARPS)
            for (i64 i = lane; i < P::INNER; i += 32) sum += dy[(row * P::K + k) * P::INNER + i];
        sum = warp_sum(sum);
    } else {
        const i64 first = number * chunk + warp * DOWN + lane / ACROSS;
        if (k < P::K)
            for (i64 row = first; row < last; row += WARPS * DOWN) sum += dy[row * P::K + k];
        sum = lanes_sum<ACROSS, 16>(sum);
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || lane >= ACROSS || k >= P::K) return;
    for (int other = 1; other < WARPS; ++other) sum += part[other][lane];
    partial[number * round_up(P::K, 4) + k] = sum;
}
