// Minimal filtering F(2x2, 3x3): a convolution of stride 1 by 16 products where the direct form
// has 36. What its forward pass and its input gradient share.
//
//     Y = A^T [ U * (B^T d B) ] A      d: a window's 4x4 inputs, Y: its 2x2 outputs,
//                                      U: winograd_filters/naive.cu
// Source: Lavin and Gray, "Fast algorithms for convolutional neural networks" (arXiv 1509.09308).
//
// A block makes FILTERS filters of WINDOWS windows at a time, group after group; windows are
// numbered through all images, so no group but the last has windows too few. Three parts take
// turns. Transform: a thread has two channels of a window, whose 16 numbers it writes to shared
// memory. Multiply: at each of the 16 positions that is a product of two matrices, by 16 threads;
// a thread has 8 windows of 8 filters in registers. Back: sums meet in shared memory, half of the
// windows at a time; a thread reads what two filters of a window need, and makes their outputs.
//
// The transforms add and subtract inputs, and filters: an infinity becomes NaN, and what is near the
// largest number may overflow. Outputs that are not finite are computed again, product by product,
// by the thread that wrote them, and so are the others of their window.
//
// In shared memory, (position, two channels, window) of inputs and (position, window, filter) of
// sums: some bits of a place are changed by its row, so that threads meet in no bank.
#pragma once

#include "device/async_tile.cuh"
#include "device/index.cuh"

// A window among those of images: maps of ROWS x COLS windows, one image after the other.
template <i64 ROWS, i64 COLS>
struct WindowPlace {
    static constexpr i64 DOWN = ROWS, ACROSS = COLS;
    i64 image;
    i32 row, col;  // in windows

    __device__ __forceinline__ static WindowPlace of(u32 window) {
        const u32 line = window / u32(COLS);
        return {line / u32(ROWS), i32(line % u32(ROWS)), i32(window % u32(COLS))};
    }
};

// Inputs of two channels.
struct WinogradPatch {
    float2 at[4][4];
};

// Patches of maps H x W of CHANNELS channels, channels last, behind TOP rows and LEFT columns of
// zeros; of Window's windows.
template <class Window, i64 H, i64 W, i64 CHANNELS, i64 TOP, i64 LEFT>
struct WinogradPatches {
    static constexpr bool SMALL = false;
    // Whether none reaches over a map's rim.
    static constexpr bool INSIDE = TOP == 0 && LEFT == 0 && 2 * Window::DOWN + 2 <= H &&
                                   2 * Window::ACROSS + 2 <= W;
    using Raw = WinogradPatch;
    const f32* x;

    struct Place {
        const f32* from;  // the patch's first element, of which row and column may be outside
        i32 row, col;

        __device__ __forceinline__ void move(int channels) { from += channels; }
    };
    __device__ __forceinline__ Place place(u32 window, u32 channel) const {
        const Window at = Window::of(window);
        const i32 row = 2 * at.row - i32(TOP), col = 2 * at.col - i32(LEFT);
        const i64 pixel = row * i32(W) + col;
        return {x + at.image * (H * W * CHANNELS) + pixel * CHANNELS + channel, row, col};
    }
    __device__ __forceinline__ void load(Raw& raw, const Place& at, bool there) const {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const bool inside =
                    INSIDE || (u32(at.row + i) < u32(H) && u32(at.col + j) < u32(W));
                const f32* from = at.from + (i * W + j) * CHANNELS;
                raw.at[i][j] = there && inside ? *reinterpret_cast<const float2*>(from)
                                               : make_float2(0.0f, 0.0f);
            }
    }
    __device__ __forceinline__ const WinogradPatch& expand(const Raw& raw) const { return raw; }
};

// B^T times four.
__device__ __forceinline__ void winograd_inputs(f32& a, f32& b, f32& c, f32& d) {
    const f32 sum = b + c, difference = c - b;
    a -= c;
    d = b - d;
    b = sum, c = difference;
}

// Blocks that share a multiprocessor, as its shared memory has room for them, which says how many
// registers a thread may have.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && \
    (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
#define CONVLOOM_WINOGRAD_BLOCKS 1
#else
#define CONVLOOM_WINOGRAD_BLOCKS 2
#endif

template <i64 DEPTH, i64 FILTERS_>
struct Winograd {
    static constexpr int BLOCK = 256, FILTERS = int(FILTERS_), WINDOWS = 1024 / FILTERS;
    static constexpr int CHUNK = 512 / WINDOWS, PAIRS = CHUNK / 2;  // channels at a time
    static constexpr int CHUNKS = int(ceil_div(DEPTH, CHUNK));
    static constexpr int ALONG = FILTERS / 8, ACROSS = WINDOWS / 8;  // threads of a position
    // Floats in shared memory: of a position's inputs or sums, and filters; and of a chunk's.
    static constexpr int POINT = CHUNK * WINDOWS, LINE = CHUNK * FILTERS, UNIT = 16 * LINE;
    // Whether the filters of all chunks stay in shared memory.
    static constexpr bool RESIDENT = CHUNKS * UNIT <= 16 * POINT;
    static_assert((FILTERS == 16 || FILTERS == 32) && DEPTH % 4 == 0);

    using Sums = f32[4][2][2][4];  // four pairs of windows by two fours of filters
    using Outputs = f32[2][4];     // four cells of two filters

    // What a block makes: FILTERS filters of all, from `filter` on, of `each` groups of windows.
    struct Share {
        u32 part, first, last;  // groups [first, last)
        u32 count;              // windows of all blocks
        i64 filter;

        __device__ __forceinline__ Share(i64 filters, i64 each, i64 windows) {
            const u32 parts = u32(filters / FILTERS);
            part = blockIdx.x % parts, filter = part * FILTERS;
            first = blockIdx.x / parts * u32(each), last = first + u32(each), count = u32(windows);
            const u32 groups = (count + WINDOWS - 1) / WINDOWS;
            if (last > groups) last = groups;
        }
    };

    // The pair of channels and the window that the thread transforms.
    struct Patched {
        u32 pair, window;
    };
    __device__ __forceinline__ static Patched patched() {
        const u32 thread = threadIdx.x;
        return {thread % 4 + thread / 16 % (PAIRS / 4) * 4,
                thread / 4 % 4 + thread / (4 * PAIRS) * 4};
    }
    // The thread's position, and its place among the threads of that: half of a warp, in which
    // neighbours share windows, and neighbours of these filters.
    struct Own {
        u32 position, along, across;
    };
    __device__ __forceinline__ static Own own() {
        const u32 thread = threadIdx.x, lane = thread % 16;
        if constexpr (ALONG == 4)
            return {thread / 16, lane % 2 + lane / 4 % 2 * 2, lane / 2 % 2 + lane / 8 * 2};
        else
            return {thread / 16, lane % 2, lane / 2};
    }
    // Where the sums of a half's window lie, from a filter on that is a multiple of 2. What windows
    // flip has KINDS values, APART from one another.
    static constexpr int APART = 4 * ALONG, KINDS = 32 / FILTERS * 2;
    __device__ __forceinline__ static u32 sums_at(u32 window, u32 filter) {
        return (window * FILTERS + filter) ^ (window / 2 % KINDS * APART);
    }

    // Starts copying the filters of COUNT chunks.
    template <int COUNT>
    __device__ __forceinline__ static void copy_filters(f32* to, const f32* u) {
#pragma unroll 4
        for (int i = 4 * int(threadIdx.x); i < COUNT * UNIT; i += 4 * BLOCK)
            copy_four(to + i, u + i, true);
    }
    // Transforms what was read of a pair of channels of a window.
    __device__ __forceinline__ static void transform(f32* to, WinogradPatch patch) {
        const Patched own = patched();
        float2(&d)[4][4] = patch.at;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            winograd_inputs(d[0][j].x, d[1][j].x, d[2][j].x, d[3][j].x);
            winograd_inputs(d[0][j].y, d[1][j].y, d[2][j].y, d[3][j].y);
        }
        to += 2 * (own.pair * WINDOWS + (own.window ^ (own.pair % 4 * 4)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            winograd_inputs(d[i][0].x, d[i][1].x, d[i][2].x, d[i][3].x);
            winograd_inputs(d[i][0].y, d[i][1].y, d[i][2].y, d[i][3].y);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                *reinterpret_cast<float2*>(to + (4 * i + j) * POINT) = d[i][j];
        }
    }
    // Adds a chunk's products.
    __device__ __forceinline__ static void multiply(Sums& sum, const f32* inputs,
                                                    const f32* filters) {
        const Own own = Winograd::own();
        inputs += own.position * POINT, filters += own.position * LINE + 4 * own.along;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            // Of the bits that change, those of the thread's place, and those of `m`.
            const u32 flip = pair % 4 * 4, lower = flip % (2 * ACROSS), upper = flip - lower;
            const f32* from = inputs + 2 * (pair * WINDOWS + ((2 * own.across) ^ lower));
            float4 in[4];
#pragma unroll
            for (int m = 0; m < 4; ++m)
                in[m] = *reinterpret_cast<const float4*>(from + 2 * (u32(2 * ACROSS * m) ^ upper));
#pragma unroll
            for (int c = 0; c < 2; ++c)
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    f32 weight[4];
                    load_fours(weight, filters + (2 * pair + c) * FILTERS + b * 4 * ALONG, 0);
#pragma unroll
                    for (int m = 0; m < 4; ++m)
#pragma unroll
                        for (int v = 0; v < 4; ++v) {
                            f32 &left = sum[m][0][b][v], &right = sum[m][1][b][v];
                            left = fmaf(c == 0 ? in[m].x : in[m].y, weight[v], left);
                            right = fmaf(c == 0 ? in[m].z : in[m].w, weight[v], right);
                        }
                }
        }
    }
    // Writes the thread's sums of one half of the windows.
    __device__ __forceinline__ static void give(f32* to, const Sums& sum, int half) {
        const Own own = Winograd::own();
        to += own.position * POINT + 2 * own.across * FILTERS + 4 * own.along;
        const u32 flip = own.across % KINDS * APART;  // as sums_at has it
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int e = 0; e < 2; ++e)
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const f32* four = sum[2 * half + m][e][b];
                    const u32 step = KINDS == 2 ? e * FILTERS + (u32(b * APART) ^ flip)
                                                : u32(e * FILTERS + b * APART) ^ flip;
                    *reinterpret_cast<float4*>(to + 2 * ACROSS * FILTERS * m + step) =
                        make_float4(four[0], four[1], four[2], four[3]);
                }
    }
    // Y of two filters from their sums, whose first lies at `from`. With BIAS `add` is added.
    template <bool BIAS>
    __device__ __forceinline__ static void take(Outputs& y, const f32* from, const float2& add) {
        f32 upper[2][4], lower[2][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float2 m[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                m[i] = *reinterpret_cast<const float2*>(from + (4 * i + j) * POINT);
            if (BIAS && j == 1) m[1].x += add.x, m[1].y += add.y;  // which is in every output
            upper[0][j] = m[0].x + m[1].x + m[2].x, upper[1][j] = m[0].y + m[1].y + m[2].y;
            lower[0][j] = m[1].x - m[2].x - m[3].x, lower[1][j] = m[1].y - m[2].y - m[3].y;
        }
#pragma unroll
        for (int v = 0; v < 2; ++v) {
            y[v][0] = upper[v][0] + upper[v][1] + upper[v][2];
            y[v][1] = upper[v][1] - upper[v][2] - upper[v][3];
            y[v][2] = lower[v][0] + lower[v][1] + lower[v][2];
            y[v][3] = lower[v][1] - lower[v][2] - lower[v][3];
        }
    }
    __device__ __forceinline__ static bool finite(const Outputs& y) {
        const f32 sum = ((y[0][0] + y[0][1]) + (y[0][2] + y[0][3])) +
                        ((y[1][0] + y[1][1]) + (y[1][2] + y[1][3]));
        return sum - sum == 0.0f;
    }

    // Makes the block's outputs. `u` are the filters of all blocks.
    //
    // Source has a type Place, place(window, channel), which moves on by channels; a type Raw, what
    // is read for a patch of two channels, load(raw, place, there), zeros unless `there`, and
    // expand(raw), the patch; and SMALL: whether Raw takes few registers. Sink has a type Before,
    // before(window, filter), what is read before the outputs of two filters are made; BIAS, and
    // bias(before), which then is added to them; write(window, filter, outputs, before); and
    // again(window, filter), which makes and writes them product by product. Filters are numbered
    // in the block.
    template <class Source, class Sink>
    __device__ __forceinline__ static void run(const Source& source, const Sink& sink,
                                               const f32* u, const Share& share) {
        const u32 first = share.first, last = share.last, count = share.count;
        // What is read next is on its way while products are made, if it takes few registers; or,
        // if it is the next group's, while outputs are.
        constexpr bool EARLY = Source::SMALL, LATE = !EARLY && CHUNKS == 1;
        extern __shared__ __align__(128) unsigned char smem_raw[];
        f32* inputs = reinterpret_cast<f32*>(smem_raw);  // and sums
        f32* filters = inputs + 16 * POINT;
        u += i64(share.part) * (CHUNKS * UNIT);
        if constexpr (RESIDENT) copy_filters<CHUNKS>(filters, u), close_copies();
        typename Source::Raw raw;
        typename Source::Place place;
        const auto read = [&](u32 group, int chunk) {
            const Patched own = patched();
            const u32 window = group * WINDOWS + own.window, channel = 2 * own.pair;
            if (chunk == 0)
                place = source.place(window < count ? window : count - 1, channel);
            else
                place.move(CHUNK);
            source.load(raw, place, DEPTH % CHUNK == 0 || chunk * CHUNK + channel < DEPTH);
        };
        if (EARLY || LATE) read(first, 0);
#pragma unroll 1
        for (u32 group = first; group < last; ++group) {
            Sums sum = {};
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                if constexpr (!RESIDENT) copy_filters<1>(filters, u + chunk * UNIT), close_copies();
                if (!EARLY && !LATE) read(group, chunk);
                transform(inputs, source.expand(raw));
                await_copies<0>();
                __syncthreads();
                if (EARLY) {
                    const bool more = chunk + 1 < CHUNKS;
                    read(more ? group : group + 1, more ? chunk + 1 : 0);
                }
                multiply(sum, inputs, filters + (RESIDENT ? chunk * UNIT : 0));
                __syncthreads();
            }
            // What the thread makes of each half.
            const u32 filter = threadIdx.x % (FILTERS / 2) * 2, row = threadIdx.x / (FILTERS / 2);
            const u32 window = group * WINDOWS + row;
            u32 spoilt = 0;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 made = window + half * (WINDOWS / 2);
                give(inputs, sum, half);
                if (LATE && half == 0) read(group + 1, 0);
                const typename Sink::Before before = sink.before(made < count ? made : 0, filter);
                __syncthreads();
                Outputs y;
                take<Sink::BIAS>(y, inputs + sums_at(row, filter), sink.bias(before));
                if (made < count) {
                    sink.write(made, filter, y, before);
                    if (!finite(y)) spoilt |= 1 << half;
                }
                __syncthreads();
            }
            if (spoilt != 0)
#pragma unroll 1
                for (int half = 0; half < 2; ++half)
                    if (spoilt >> half & 1) sink.again(window + half * (WINDOWS / 2), filter);
        }
    }
};
