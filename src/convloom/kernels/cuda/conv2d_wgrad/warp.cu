// Gradients of filters with few taps (C*R*S) and, with BIAS, of the bias. POOL is that of the fused
// rung; G is 1.
//
// A lane stands on a filter and keeps the sums of all its taps in registers; a block walks a chunk
// of output pixels, or with POOL of pooling windows, several at once where filters are few: of the
// four cells of a window only the winner has a gradient, and each lane looks up its own. Lanes are
// added by shuffles, warps through shared memory. Chunk c writes at dw + c * stride and
// db + c * stride, in KRSC order; several chunks are added up by sum_partials.
// Against tiled: a tile would be mostly empty; and with POOL there is one product in four.
// Limit: a load (from the first-level cache) and a multiply-add for each tap.
#include "device/conv_tile.cuh"
#include "device/reduce.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    conv2d_wgrad_warp(const f32* x, const f32* dy, const u8* index, f32* dw, f32* db, i64 n,
                      i64 chunk, i64 stride) {
    constexpr int WARPS = 8, DEPTH = int(Conv<P>::DEPTH), SUMS = DEPTH + 1;
    constexpr int ACROSS = row_lanes(P::K), DOWN = 32 / ACROSS;
    constexpr i64 BLOCKS = ceil_div(P::K, ACROSS);  // of filters
    // Windows, or pixels, of an image.
    constexpr i64 COUNT = P::POOL != 0 ? Pixels<P>::COUNT / 4 : Pixels<P>::COUNT;
    __shared__ f32 part[WARPS][ACROSS * SUMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 number = blockIdx.x / BLOCKS;
    const i64 filter = blockIdx.x % BLOCKS * ACROSS + lane % ACROSS;
    const i64 last = least((number + 1) * chunk, n * COUNT);
    f32 sum[SUMS] = {};
    if (filter < P::K) {
        i64 i = number * chunk + warp * DOWN + lane / ACROSS;
        for (; i < last; i += WARPS * DOWN) {
            const i64 image = i / COUNT;
            Pixel at = Pixels<P>::at(u32(i % COUNT) * (P::POOL != 0 ? 4 : 1));
            f32 gradient;
            if constexpr (P::POOL != 0) {
                const i64 from = Conv<P>::pooled_offset(image, filter, at.row / 2, at.col / 2);
                gradient = dy[from];
                at.row += index[from] / 2, at.col += index[from] % 2;
            } else {
                gradient = dy[Conv<P>::y_offset(image, filter, at.row, at.col)];
            }
            const i32 row = at.row * i32(P::UH) - i32(P::PH);
            const i32 col = at.col * i32(P::UW) - i32(P::PW);
            const f32* from = x + image * Conv<P>::X_SIZE;
            sum[DEPTH] += gradient;
#pragma unroll
            for (int tap = 0; tap < DEPTH; ++tap) {
                const int c = tap % int(P::C), rs = tap / int(P::C);
                const i32 h = row + rs / int(P::S) * i32(P::DH);
                const i32 w = col + rs % int(P::S) * i32(P::DW);
                sum[tap] = fmaf(Conv<P>::padded(from, 0, c, h, w), gradient, sum[tap]);
            }
        }
    }
#pragma unroll
    for (int tap = 0; tap < SUMS; ++tap) {
        const f32 total = lanes_sum<ACROSS, 16>(sum[tap]);
        if (lane < ACROSS) part[warp][lane * SUMS + tap] = total;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < ACROSS * SUMS; at += 32 * WARPS) {
        const i64 k = blockIdx.x % BLOCKS * ACROSS + at / SUMS;
        if (k >= P::K) continue;
        f32 total = part[0][at];
        for (int other = 1; other < WARPS; ++other) total += part[other][at];
        if (at % SUMS < DEPTH)
            dw[number * stride + k * DEPTH + at % SUMS] = total;
        else if (P::BIAS != 0)
            db[number * stride + k] = total;
    }
}
