// dw[i], db[k] = sum over chunks of their partial sums, in an order that never changes
//
// Each chunk holds a filter gradient in KRSC order (C*R*S weights for each of K filters), then,
// with BIAS, a bias gradient of K, and padding to a multiple of four. A block takes 32 neighbours:
// each of its eight warps adds every eighth chunk, lane by lane, and the first warp adds the eight
// sums. With WROW dw is written in KCRS order.
// Against naive: neighbouring lanes read neighbours of one chunk, and eight chunks at once.
// Limit: the bytes of all partial sums, which are mostly in the second-level cache.
#include "device/index.cuh"

template <class P>
__global__ void sum_partials_tiled(const f32* partial, f32* dw, f32* db, i64 chunks) {
    constexpr i64 DEPTH = P::C * P::R * P::S, WEIGHTS = P::K * DEPTH;
    constexpr i64 SIZE = WEIGHTS + (P::BIAS != 0 ? P::K : 0), STRIDE = round_up(SIZE, 4);
    constexpr int WARPS = 8;
    __shared__ f32 part[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 i = i64(blockIdx.x) * 32 + lane;
    f32 sum = 0.0f;
    if (i < SIZE)
        for (i64 chunk = warp; chunk < chunks; chunk += WARPS) sum += partial[chunk * STRIDE + i];
    part[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || i >= SIZE) return;
    for (int other = 1; other < WARPS; ++other) sum += part[other][lane];
    if (i >= WEIGHTS) {
        db[i - WEIGHTS] = sum;
    } else if constexpr (P::WROW != 0) {
        const Place at = place_of<P::C, P::R, P::S, false>(i);
        dw[offset_of<P::C, P::R, P::S, true>(at)] = sum;
    } else {
        dw[i] = sum;
    }
}
