// Gradients of filters and, with BIAS, of the bias, of a convolution that 2x2 pooling followed, one
// product in four (device/sparse.cuh says which).
//
// A block owns GROUPS * 8 filters and 16 channels; it takes strips of STRIP window rows of images,
// one after the other: their inputs, padded, and their winners are copied to shared memory. A warp
// owns eight filters, four lanes each, and STREAMS warps share the windows of a strip: a lane reads
// the 3x3 inputs that its filter's winner saw, and adds its gradient times them to its sums, which
// stay in registers. Streams are added up, in order, through shared memory. Block c of the strips
// writes at dw + c * stride and db + c * stride, in KRSC order; sum_partials adds several up.
// Against tiled: a quarter of the products. What is left out is not multiplied, so a NaN in x that
// no winner saw does not show.
// Limit: 16 bytes of shared memory read for four multiply-adds.
#include "device/sparse.cuh"

// The gradient of a filter at a window, and how far its winner shifts what it saw, in floats.
struct __align__(8) Winner {
    f32 gradient;
    i32 shift;
};

template <class P>
__global__ void __launch_bounds__(256)
    conv2d_wgrad_sparse(const f32* x, const f32* dyp, const u8* index, f32* dw, f32* db, i64 n,
                        i64 chunk, i64 stride) {
    using Kit = Sparse<P>;
    constexpr int PLACE = Kit::PLACE, FOURS = Kit::CHANNELS / 4;
    constexpr int GROUPS = P::K % 32 == 0 ? 4 : P::K % 16 == 0 ? 2 : 1, STREAMS = 8 / GROUPS;
    constexpr int FILTERS = 8 * GROUPS, COLS = int(Kit::COLS);
    constexpr i64 ACROSS = P::K / FILTERS, CHANNELS = P::C / Kit::CHANNELS;
    constexpr i64 STRIPS = ceil_div(Kit::ROWS, P::STRIP);
    constexpr int HIGH = 2 * int(P::STRIP) + 2, WIDE = 2 * COLS + 2;  // inputs of a strip
    extern __shared__ __align__(128) unsigned char smem_raw[];
    f32* tile = reinterpret_cast<f32*>(smem_raw);  // (HIGH, WIDE, PLACE)
    Winner* winners = reinterpret_cast<Winner*>(tile + HIGH * WIDE * PLACE);  // (windows, FILTERS)
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int own = warp % GROUPS * 8 + lane / 4, stream = warp / GROUPS;
    const i64 first = blockIdx.x % ACROSS * FILTERS;
    const i64 channel = blockIdx.x / ACROSS % CHANNELS * Kit::CHANNELS;
    const i64 number = blockIdx.x / (ACROSS * CHANNELS);
    const i64 last = least((number + 1) * chunk, n * STRIPS);
    f32 sum[9][4] = {}, bias = 0.0f;
    for (i64 item = number * chunk; item < last; ++item) {
        const i64 image = item / STRIPS;
        const i32 start = i32(item % STRIPS * P::STRIP);  // first window row
        const i32 top = 2 * start - i32(P::PH);
        const int count = int(least(P::STRIP, Kit::ROWS - start)) * COLS;  // of windows
        __syncthreads();  // the strip before is done with
#pragma unroll 4
        for (int i = threadIdx.x; i < HIGH * WIDE * FOURS; i += 256) {
            const int pixel = i / FOURS, four = i % FOURS;
            const i32 row = top + pixel / WIDE, col = pixel % WIDE - i32(P::PW);
            const bool inside = row >= 0 && row < P::H && col >= 0 && col < P::W;
            f32 value[4];
            load_or_zero(value, x, Conv<P>::x_offset(image, channel + 4 * four, row, col), inside);
            Kit::put(tile + pixel * PLACE, four, value);
        }
        const i64 window = (image * Kit::ROWS + start) * COLS;
#pragma unroll 4
        for (int i = threadIdx.x; i < count * FILTERS; i += 256) {
            const i64 at = (window + i / FILTERS) * P::K + first + i % FILTERS;
            const i32 cell = index[at];
            winners[i] = {dyp[at], (cell / 2 * WIDE + cell % 2) * PLACE};
        }
        __syncthreads();
        for (int i = stream; i < count; i += STREAMS) {
            const Winner winner = winners[i * FILTERS + own];
            const int corner = (2 * (i / COLS) * WIDE + 2 * (i % COLS)) * PLACE;
            const f32* from = tile + corner + winner.shift + Kit::lane_offset();
            bias += winner.gradient;
#pragma unroll
            for (int tap = 0; tap < 9; ++tap)
                add_product(sum[tap], winner.gradient,
                            four_at(from + (tap / 3 * WIDE + tap % 3) * PLACE));
        }
    }
    f32* part = tile;  // (37, GROUPS, 32)
    for (int other = 1; other < STREAMS; ++other) {
        __syncthreads();
        f32* mine = part + warp % GROUPS * 32 + lane;
        if (stream == other) {
#pragma unroll
            for (int j = 0; j < 36; ++j) mine[j * GROUPS * 32] = sum[j / 4][j % 4];
            mine[36 * GROUPS * 32] = bias;
        }
        __syncthreads();
        if (stream != 0) continue;
#pragma unroll
        for (int j = 0; j < 36; ++j) sum[j / 4][j % 4] += mine[j * GROUPS * 32];
        bias += mine[36 * GROUPS * 32];
    }
    if (stream != 0) return;
    f32* to = dw + number * stride + (first + own) * Conv<P>::DEPTH + channel + lane % 4 * 4;
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) store_fours<true>(to + tap * P::C, sum[tap], 0, 4);
    if (P::BIAS != 0 && channel == 0 && lane % 4 == 0) db[number * stride + first + own] = bias;
}
