// Convolution of stride 1, bias, activation (ACT) and 2x2 max-pooling of stride 2 (POOL), without
// gathering patches: for channels and filters that are read four at a time.
//
// A block makes FILTERS filters of a band of an image's outputs: BAND rows of tiles, each tile two
// rows by four columns. It copies the input rows that the band sees, and the filters, to shared
// memory, SLICE channels at a time. A thread makes a tile of four filters: for four channels it
// holds the two input rows that a row of the filter meets in registers, and uses them for all of
// its columns. The threads of a warp share their filters, whose weights they read by broadcast.
// In shared memory four channels of a pixel lie together, and pixels whose columns differ by
// multiples of four: neighbouring threads then read neighbours.
// Against async: patches of neighbouring outputs overlap; here an element that was read serves all
// of a thread's products with it in a row of the filter.
// Limit: 2*C*R*S FLOPs an output; a load from shared memory feeds about 20 multiply-adds.
#include "device/activation.cuh"
#include "device/conv.cuh"
#include "device/pool.cuh"
#include "device/tile.cuh"

template <class P>
struct DirectBand {
    static constexpr int TALL = 2, WIDE = 4, VEC = 4;  // a thread's outputs, and its filters
    static constexpr int R = P::R, S = P::S, BAND = P::BAND;
    static constexpr int FILTERS = P::FILTERS, SLICE = P::SLICE;
    // Outputs that take part; with POOL those that overhang the last window do not.
    static constexpr i64 OUT_ROWS = P::POOL != 0 ? Conv<P>::POOL_ROWS * 2 : P::OH;
    static constexpr i64 OUT_COLS = P::POOL != 0 ? Conv<P>::POOL_COLS * 2 : P::OW;
    static constexpr int DOWN = int(ceil_div(OUT_ROWS, TALL)), ACROSS = int(ceil_div(OUT_COLS, WIDE));
    static constexpr int TILES = BAND * ACROSS, THREADS = TILES * (FILTERS / VEC);
    static constexpr int BLOCK = int(round_up(THREADS, 32));
    static constexpr i64 BANDS = ceil_div(DOWN, BAND), GROUPS = P::K / FILTERS;

    // Input rows and columns of a band, and the tile in shared memory: (four channels, row, column
    // modulo 4, column / 4), rows PITCH apart so that threads of two tile rows read other banks.
    static constexpr int ROWS = TALL * BAND + R - 1, COLS = WIDE * ACROSS + S - 1;
    static constexpr int QUARTER = int(ceil_div(COLS, 4));
    __host__ __device__ static constexpr int pitch() {
        int pitch = 4 * QUARTER;
        while (ACROSS % 2 == 0 && TALL * pitch % 8 != ACROSS % 8) ++pitch;
        return pitch;
    }
    static constexpr int PITCH = pitch(), PLANE = ROWS * PITCH;
    static constexpr int WEIGHTS = R * S * FILTERS;  // fours of weights for four channels

    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);
    static_assert(P::C % SLICE == 0 && SLICE % 4 == 0 && P::K % FILTERS == 0 && FILTERS % VEC == 0 && VEC % 4 == 0);

    __device__ __forceinline__ static int place(int row, int col) {
        return row * PITCH + col % 4 * QUARTER + col / 4;
    }

    // Copies SLICE channels of the band, with 0 where there is no input.
    __device__ __forceinline__ static void copy_inputs(float4* tile, const f32* x, i32 top) {
        constexpr int FOURS = SLICE / 4;
#pragma unroll 4
        for (int i = threadIdx.x; i < ROWS * COLS * FOURS; i += BLOCK) {
            const int pixel = i / FOURS, four = i % FOURS;
            const i32 row = top + pixel / COLS, col = pixel % COLS - i32(P::PW);
            const bool inside = row >= 0 && row < P::H && col >= 0 && col < P::W;
            f32 value[4];
            load_or_zero(value, x, (i64(row) * P::W + col) * P::C + 4 * four, inside);
            tile[four * PLANE + place(pixel / COLS, pixel % COLS)] =
                make_float4(value[0], value[1], value[2], value[3]);
        }
    }
    // Copies SLICE channels of the block's filters: (four channels, tap, filter). Neighbouring
    // threads write neighbours, so they read far apart.
    __device__ __forceinline__ static void copy_filters(float4* tile, const f32* w) {
        constexpr int FOURS = SLICE / 4;
#pragma unroll 4
        for (int i = threadIdx.x; i < WEIGHTS * FOURS; i += BLOCK) {
            const int filter = i % FILTERS, four = i / FILTERS % FOURS, tap = i / (FILTERS * FOURS);
            f32 value[4];
            load_or_zero(value, w, filter * Conv<P>::DEPTH + tap * P::C + 4 * four, true);
            tile[four * WEIGHTS + tap * FILTERS + filter] =
                make_float4(value[0], value[1], value[2], value[3]);
        }
    }

    using Sums = f32[TALL][WIDE][VEC];
    using Row = float4[WIDE + S - 1];

    __device__ __forceinline__ static void read_row(Row& row, const float4* from) {
#pragma unroll
        for (int col = 0; col < WIDE + S - 1; ++col) row[col] = from[place(0, col)];
    }
    // Adds the products of four channels: `from` is the tile's first input, `weights` its filters'
    // first weight.
    __device__ __forceinline__ static void multiply(Sums& sum, const float4* from,
                                                    const float4* weights) {
        Row row[TALL];
        read_row(row[0], from);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            read_row(row[(r + 1) % 2], from + (r + 1) * PITCH);
#pragma unroll
            for (int s = 0; s < S; ++s)
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    const float4 weight = weights[(r * S + s) * FILTERS + v];
#pragma unroll
                    for (int i = 0; i < TALL; ++i)
#pragma unroll
                        for (int j = 0; j < WIDE; ++j) {
                            const float4 input = row[(r + i) % 2][j + s];
                            f32& total = sum[i][j][v];
                            total = fmaf(input.x, weight.x, total);
                            total = fmaf(input.y, weight.y, total);
                            total = fmaf(input.z, weight.z, total);
                            total = fmaf(input.w, weight.w, total);
                        }
                }
        }
    }
};

template <class P>
__global__ void __launch_bounds__(DirectBand<P>::BLOCK, 1)
    conv2d_fprop_direct(const f32* x, const f32* w, const f32* bias, f32* y, u8* index, i64 n) {
    using Band = DirectBand<P>;
    constexpr int TALL = Band::TALL, WIDE = Band::WIDE, VEC = Band::VEC, FOURS = Band::SLICE / 4;
    extern __shared__ __align__(128) unsigned char smem_raw[];
    float4* inputs = reinterpret_cast<float4*>(smem_raw);
    float4* filters = inputs + FOURS * Band::PLANE;
    const i64 first_filter = blockIdx.x % Band::GROUPS * Band::FILTERS;
    const i32 band = i32(blockIdx.x / Band::GROUPS % Band::BANDS) * Band::BAND;  // its first row
    const i64 image = blockIdx.x / (Band::GROUPS * Band::BANDS);
    const bool busy = threadIdx.x < Band::THREADS;  // the last warp may have threads too many
    const int tile = busy ? int(threadIdx.x) % Band::TILES : 0;
    const int filter = busy ? int(threadIdx.x) / Band::TILES * VEC : 0;  // in the block
    const int down = tile / Band::ACROSS, across = tile % Band::ACROSS;
    const float4* from = inputs + TALL * down * Band::PITCH + across;
    typename Band::Sums sum = {};
    for (i32 c = 0; c < P::C; c += Band::SLICE) {
        if (c != 0) __syncthreads();
        Band::copy_inputs(inputs, x + image * Conv<P>::X_SIZE + c, TALL * band - i32(P::PH));
        Band::copy_filters(filters, w + first_filter * Conv<P>::DEPTH + c);
        __syncthreads();
#pragma unroll 1
        for (int four = 0; four < FOURS; ++four)
            Band::multiply(sum, from + four * Band::PLANE, filters + four * Band::WEIGHTS + filter);
    }
    if (!busy) return;
    f32 add[VEC] = {};
    if constexpr (P::BIAS != 0)
#pragma unroll
        for (int v = 0; v < VEC; ++v) add[v] = bias[first_filter + filter + v];
#pragma unroll
    for (int i = 0; i < TALL; ++i)
#pragma unroll
        for (int j = 0; j < WIDE; ++j)
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                f32& total = sum[i][j][v];
                if (P::BIAS != 0) total += add[v];
                total = activated<P>(total);
            }
    const i32 row = TALL * (band + down), col = WIDE * across;
    if (row >= Band::OUT_ROWS) return;
    const i64 to = first_filter + filter;
    if constexpr (P::POOL == 0) {
#pragma unroll
        for (int i = 0; i < TALL; ++i)
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
                if (row + i >= P::OH || col + j >= P::OW) continue;
                f32* at = y + Conv<P>::y_offset(image, to, row + i, col + j);
#pragma unroll
                for (int v = 0; v < VEC; v += 4) store_fours<true>(at + v, &sum[i][j][v], 0, 4);
            }
    } else {
#pragma unroll
        for (int j = 0; j < WIDE; j += 2) {
            if (col + j >= Band::OUT_COLS) continue;
            const i64 at = Conv<P>::pooled_offset(image, to, row / 2, (col + j) / 2);
#pragma unroll
            for (int four = 0; four < VEC; four += 4) {
                f32 best[4];
                u32 winners = 0;  // one a byte
#pragma unroll
                for (int v = 0; v < 4; ++v) {
                    best[v] = sum[0][j][four + v];
                    u32 winner = 0;
#pragma unroll
                    for (int cell = 1; cell < 4; ++cell) {
                        const f32 value = sum[cell / 2][j + cell % 2][four + v];
                        if (!replaces(value, best[v])) continue;
                        best[v] = value;
                        winner = cell;
                    }
                    winners |= winner << 8 * v;
                }
                store_fours<true>(y + at + four, best, 0, 4);
                *reinterpret_cast<u32*>(index + at + four) = winners;
            }
        }
    }
}
