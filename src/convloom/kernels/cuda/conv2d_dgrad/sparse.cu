// Gradient of the input of a convolution that 2x2 pooling followed, one product in four
// (device/sparse.cuh says which); 0 where a <= 0 with MASK.
//
// A block makes LANES channels of a strip of an image: STRIP window rows, two input rows each. A
// window's gradients fall on a patch of inputs; a lane sums its channel of the patches of HELD
// windows in registers, over all filters, then adds them to the strip in shared memory. Windows
// whose patches overlap take turns: those with even row and column, then even row and odd column,
// and so on, with a barrier between, so sums have one order. The window row above the strip falls
// on it too, and is computed by both blocks.
// Against tiled: a quarter of the products. What is left out is not multiplied.
// Limit: the branch of each filter and window beside its R*S multiply-adds; where C is below 32,
// windows that share a warp and differ in their winners take turns.
#include "device/activation.cuh"
#include "device/sparse.cuh"

template <class P>
__global__ void __launch_bounds__(P::THREADS)
    conv2d_dgrad_sparse(const f32* dyp, const u8* index, const f32* w, const f32* a, f32* dx,
                        i64 n) {
    using Kit = Sparse<P>;
    extern __shared__ __align__(128) unsigned char smem_raw[];
    f32* strip = reinterpret_cast<f32*>(smem_raw);  // (2 * STRIP, W, LANES)
    constexpr int LANES = Kit::LANES, HELD = P::HELD;
    constexpr int GROUPS = int(P::THREADS) / LANES;  // of lanes that share a window
    constexpr i64 STRIPS = ceil_div((P::H - 1 + P::PH) / 2 + 1, P::STRIP);
    constexpr i64 CHANNELS = P::C / LANES;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const i64 channel = blockIdx.x % CHANNELS * LANES + lane;
    const i32 start = i32(blockIdx.x / CHANNELS % STRIPS * P::STRIP);  // first window row
    const i64 image = blockIdx.x / (CHANNELS * STRIPS);
    const i32 top = 2 * start - i32(P::PH);  // first input row
    for (int i = threadIdx.x; i < 2 * P::STRIP * P::W * LANES; i += P::THREADS) strip[i] = 0.0f;
    __syncthreads();
    for (int turn = 0; turn < 4; ++turn) {
        // Window rows from the one above the strip on, of this turn's parity; columns likewise.
        const i32 above = greatest(start - 1, 0);
        const i32 first_row = above + (above + turn / 2) % 2, first_col = turn % 2;
        const i32 end_row = i32(least(start + P::STRIP, Kit::ROWS));
        const i32 across = (i32(Kit::COLS) - first_col + 1) / 2;
        const i32 count = end_row > first_row ? (end_row - first_row + 1) / 2 * across : 0;
        for (i32 at = group * HELD; at < count; at += GROUPS * HELD) {
            typename Kit::Patch patch[HELD] = {};
            i64 from[HELD];
#pragma unroll
            for (int held = 0; held < HELD; ++held) {
                const i32 window = i32(least(at + held, count - 1));
                const i32 row = first_row + window / across * 2;
                const i32 col = first_col + window % across * 2;
                from[held] = ((image * Kit::ROWS + row) * Kit::COLS + col) * P::K;
            }
            for (i32 k = 0; k < P::K; k += 4) {
                FourWinners four[HELD];
#pragma unroll
                for (int held = 0; held < HELD; ++held)
                    four[held] = FourWinners::load(dyp, index, from[held] + k);
#pragma unroll
                for (int v = 0; v < 4; ++v) {
                    f32 weight[Kit::TAPS];
#pragma unroll
                    for (int tap = 0; tap < Kit::TAPS; ++tap)
                        weight[tap] = w[(k + v) * Conv<P>::DEPTH + tap * P::C + channel];
#pragma unroll
                    for (int held = 0; held < HELD; ++held)
                        Kit::scatter(patch[held], weight, four[held].gradient[v],
                                     four[held].cell(v));
                }
            }
#pragma unroll
            for (int held = 0; held < HELD; ++held) {
                if (at + held >= count) continue;
                const i32 row = 2 * (first_row + (at + held) / across * 2) - i32(P::PH) - top;
                const i32 col = 2 * (first_col + (at + held) % across * 2) - i32(P::PW);
#pragma unroll
                for (int r = 0; r <= Kit::R; ++r)
#pragma unroll
                    for (int s = 0; s <= Kit::S; ++s) {
                        const i32 h = row + r, c = col + s;
                        if (h >= 0 && h < 2 * P::STRIP && c >= 0 && c < P::W)
                            strip[(h * i32(P::W) + c) * LANES + lane] += patch[held][r][s];
                    }
            }
        }
        __syncthreads();
    }
    for (int i = group; i < 2 * P::STRIP * P::W; i += GROUPS) {
        const i32 row = top + i / i32(P::W), col = i % i32(P::W);
        if (row < 0 || row >= P::H) continue;
        const i64 to = Conv<P>::x_offset(image, channel, row, col);
        const f32 gradient = strip[i * LANES + lane];
        dx[to] = P::MASK != 0 ? masked(gradient, a[to]) : gradient;
    }
}
