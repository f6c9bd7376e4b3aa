// As conv2d_fprop/direct, for filters that lie in shared memory all together.
//
// A block makes FILTERS filters of IMAGES images. A thread has four filters of a strip of WIDE output
// columns and slides down it, two output rows a step. The input rows that a step sees lie in a ring
// in shared memory, where two take the place of the two that are seen no longer. For four channels
// and a row of the filter a thread reads two rows of inputs and the row's weights; neighbouring
// threads have other filters and read inputs by broadcast.
// Against direct: filters are copied once for whole images, and each input row once.
// Limit: 2*C*R*S FLOPs an output; a load from shared memory feeds about 20 multiply-adds.
#include "device/async_tile.cuh"
#include "device/conv.cuh"
#include "device/pooled.cuh"

template <class P>
struct SlidingForward {
    static constexpr int TALL = 2, WIDE = int(P::WIDE), VEC = 4;  // a thread's outputs and filters
    static constexpr int R = int(P::R), S = int(P::S), FOURS = int(P::C / 4);
    static constexpr int IMAGES = int(P::IMAGES), FILTERS = int(P::FILTERS), GROUPS = FILTERS / VEC;
    // Outputs that take part; with POOL those that overhang the last window do not.
    static constexpr int OUT_ROWS = int(P::POOL != 0 ? Conv<P>::POOL_ROWS * 2 : P::OH);
    static constexpr int OUT_COLS = int(P::POOL != 0 ? Conv<P>::POOL_COLS * 2 : P::OW);
    static constexpr int STEPS = int(ceil_div(OUT_ROWS, TALL)), ACROSS = int(ceil_div(OUT_COLS, WIDE));
    static constexpr int THREADS = IMAGES * ACROSS * GROUPS, BLOCK = int(round_up(THREADS, 32));
    static constexpr int COLS = ACROSS * WIDE + S - 1;             // inputs of a row
    static constexpr int RING = int(round_up(TALL + R - 1, TALL));  // rows
    static constexpr int IMAGE = RING * COLS;
    // Inputs of four channels: (image, row, column). Neighbouring threads write neighbouring fours,
    // which therefore lie in other banks.
    __host__ __device__ static constexpr int plane() {
        constexpr int APART = FOURS % 8 == 0 ? 1 : FOURS % 4 == 0 ? 2 : FOURS % 2 == 0 ? 4 : 1;
        int plane = IMAGES * IMAGE;
        while (plane % 8 != APART) ++plane;
        return plane;
    }
    static constexpr int PLANE = plane();
    static constexpr int LINE = S * FILTERS, WEIGHTS = R * LINE;  // fours of weights

    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);
    static_assert(P::C % 4 == 0 && P::K % FILTERS == 0 && FILTERS % VEC == 0);
    static_assert(P::POOL == 0 || WIDE % 2 == 0);

    // Copies the block's filters: (four channels, tap, filter of a thread, thread).
    __device__ __forceinline__ static void copy_filters(float4* to, const f32* w) {
        for (int i = threadIdx.x; i < FOURS * WEIGHTS; i += BLOCK) {
            const int four = i / WEIGHTS, tap = i % WEIGHTS / FILTERS;
            const int filter = i % GROUPS * VEC + i / GROUPS % VEC;
            copy_four(reinterpret_cast<f32*>(to + i),
                      w + filter * Conv<P>::DEPTH + tap * P::C + 4 * four, true);
        }
    }
    // Of the thread, read anew: what depends on it takes no registers while products are made.
    __device__ __forceinline__ static int number() {
        return int(threadIdx.x) / 32 * 32 + fresh_lane();
    }
    // What a thread makes. The last warp may have threads too many.
    struct Own {
        bool busy;
        int group, strip, image;
    };
    __device__ __forceinline__ static Own own() {
        const int thread = number();
        const bool busy = thread < THREADS;
        return {busy, thread % GROUPS, busy ? thread / GROUPS % ACROSS : 0,
                busy ? thread / GROUPS / ACROSS : 0};
    }
    // Copies COUNT rows of inputs of the block's images, of which the first `left` are there, from
    // `row` on to place `at` of the ring on; 0 where there is no input.
    template <int COUNT>
    __device__ __forceinline__ static void copy_rows(float4* to, const f32* x, i32 row, int at,
                                                     i64 left) {
        constexpr int PIXELS = BLOCK / FOURS;
        const int thread = number(), four = thread % FOURS;
        for (int col = thread / FOURS; col < COLS; col += PIXELS) {
            if (BLOCK % FOURS != 0 && thread >= PIXELS * FOURS) break;
            const i32 w = col - i32(P::PW);
            const f32* from = x + (i64(row) * P::W + w) * P::C + 4 * four;
            float4* place = to + four * PLANE + at * COLS + col;
#pragma unroll
            for (int r = 0; r < COUNT; ++r) {
                const bool inside = row + r >= 0 && row + r < P::H && w >= 0 && w < P::W;
#pragma unroll
                for (int image = 0; image < IMAGES; ++image)
                    copy_four(reinterpret_cast<f32*>(place + image * IMAGE + r * COLS),
                              from + image * Conv<P>::X_SIZE + r * P::W * P::C,
                              inside && image < left);
            }
        }
    }

    using Sums = f32[TALL][WIDE][VEC];

    // Adds a step's products; `place` is that of its first row in the ring.
    __device__ __forceinline__ static void multiply(Sums& sum, const float4* inputs,
                                                    const float4* weights, int place) {
#pragma unroll 1
        for (int four = 0; four < FOURS; ++four) {
            int upper = place;
#pragma unroll 1
            for (int r = 0; r < R; ++r) {
                const int lower = upper + 1 == RING ? 0 : upper + 1;
                float4 row[TALL][WIDE + S - 1];
#pragma unroll
                for (int col = 0; col < WIDE + S - 1; ++col) {
                    row[0][col] = inputs[upper * COLS + col];
                    row[1][col] = inputs[lower * COLS + col];
                }
#pragma unroll
                for (int s = 0; s < S; ++s)
#pragma unroll
                    for (int v = 0; v < VEC; ++v) {
                        const float4 weight = weights[s * FILTERS + v * GROUPS];
#pragma unroll
                        for (int c = 0; c < 4; ++c)
#pragma unroll
                            for (int i = 0; i < TALL; ++i)
#pragma unroll
                                for (int j = 0; j < WIDE; ++j)
                                    sum[i][j][v] = fmaf(part(row[i][j + s], c), part(weight, c),
                                                        sum[i][j][v]);
                    }
                upper = lower;
                weights += LINE;
            }
            inputs += PLANE;
        }
    }
    __device__ __forceinline__ static f32 part(const float4& four, int c) {
        return c == 0 ? four.x : c == 1 ? four.y : c == 2 ? four.z : four.w;
    }
    // Writes outputs whose first is (row, col) of filter `to`.
    __device__ __forceinline__ static void write(const Sums& sum, f32* y, u8* index, i64 image,
                                                 i64 to, i32 row, i32 col) {
        if constexpr (P::POOL == 0) {
#pragma unroll
            for (int i = 0; i < TALL; ++i)
#pragma unroll
                for (int j = 0; j < WIDE; ++j) {
                    if (row + i >= P::OH || col + j >= P::OW) continue;
                    f32 value[VEC];
#pragma unroll
                    for (int v = 0; v < VEC; ++v) value[v] = activated<P>(sum[i][j][v]);
                    store_fours<true>(y + Conv<P>::y_offset(image, to, row + i, col + j), value, 0,
                                      VEC);
                }
        } else {
            const i64 first = Conv<P>::pooled_offset(image, to, row / 2, col / 2);
#pragma unroll
            for (int j = 0; j < WIDE; j += 2) {
                if (col + j >= OUT_COLS) continue;
                f32 best[VEC];
                u32 winners = 0;  // one a byte
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    u32 winner;
                    best[v] = pooled<P>([&](int i) { return sum[i / 2][j + i % 2][v]; }, winner);
                    winners |= winner << 8 * v;
                }
                const i64 at = first + j / 2 * P::K;
                store_fours<true>(y + at, best, 0, VEC);
                *reinterpret_cast<u32*>(index + at) = winners;
            }
        }
    }
};

// Blocks that share a multiprocessor, which says how many registers a thread may have: fewer than
// BLOCKS for GPUs whose compilers would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CONVLOOM_SLIDING_BLOCKS(WANTED) ((WANTED) > 1 ? (WANTED) * 3 / 4 : 1)
#else
#define CONVLOOM_SLIDING_BLOCKS(WANTED) (WANTED)
#endif

template <class P>
__global__ void __launch_bounds__(SlidingForward<P>::BLOCK, CONVLOOM_SLIDING_BLOCKS(P::BLOCKS))
    conv2d_fprop_sliding(const f32* x, const f32* w, const f32* bias, f32* y, u8* index, i64 n) {
    using Kit = SlidingForward<P>;
    constexpr int TALL = Kit::TALL, WIDE = Kit::WIDE, VEC = Kit::VEC, FIRST = Kit::RING - TALL;
    constexpr i64 PARTS = P::K / Kit::FILTERS;
    extern __shared__ __align__(128) unsigned char smem_raw[];
    float4* filters = reinterpret_cast<float4*>(smem_raw);
    float4* inputs = filters + Kit::FOURS * Kit::WEIGHTS;
    const i64 first = blockIdx.x / PARTS * Kit::IMAGES;  // image
    const i64 first_filter = blockIdx.x % PARTS * Kit::FILTERS;
    x += first * Conv<P>::X_SIZE;
    Kit::copy_filters(filters, w + first_filter * Conv<P>::DEPTH);
    if constexpr (FIRST > 0) Kit::template copy_rows<FIRST>(inputs, x, -i32(P::PH), 0, n - first);
    int place = 0;  // of the step's first row
#pragma unroll 1
    for (i32 step = 0; step < Kit::STEPS; ++step) {
        const int next = place < TALL ? place + FIRST : place - TALL;
        Kit::template copy_rows<TALL>(inputs, x, TALL * step + FIRST - i32(P::PH), next, n - first);
        close_copies();
        await_copies<0>();
        __syncthreads();
        const typename Kit::Own own = Kit::own();
        f32 add[VEC] = {};
        if constexpr (P::BIAS != 0) load_or_zero(add, bias, first_filter + own.group * VEC, true);
        typename Kit::Sums sum;
#pragma unroll
        for (int i = 0; i < TALL; ++i)
#pragma unroll
            for (int j = 0; j < WIDE; ++j)
#pragma unroll
                for (int v = 0; v < VEC; ++v) sum[i][j][v] = add[v];
        Kit::multiply(sum, inputs + own.image * Kit::IMAGE + own.strip * WIDE, filters + own.group,
                      place);
        const typename Kit::Own again = Kit::own();
        if (again.busy && first + again.image < n)
            Kit::write(sum, y, index, first + again.image, first_filter + again.group * VEC,
                       TALL * step, again.strip * WIDE);
        place = place + TALL == Kit::RING ? 0 : place + TALL;
        __syncthreads();  // the upper rows are done with
    }
}
