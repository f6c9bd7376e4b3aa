// Products of two matrices by tiles: what the tiled rung of linear layers and convolutions shares.
//
//     sum[i][j] = sum over k of a(row i, k) * b(col j, k)
//
// A block makes BM x BN sums, a thread TM x TN of them in registers. It walks the depth in steps of
// BK: the next step's operands are on their way from global memory into registers while this
// step's are multiplied from shared memory. Two tiles take turns, so a step needs one barrier.
//
// An operand is a Source: it knows how to read VEC neighbouring elements at (row, k), 0 where there
// is none. If ALONG_DEPTH they are neighbours in depth, else in rows. What it computes once for
// each row is its Place.
#pragma once

#include "device/index.cuh"
#include "device/ptx.cuh"

// Copies an operand's tiles: ROWS x BK elements by THREADS threads.
template <class Source, int ROWS, int BK, int THREADS>
struct TileLoader {
    static constexpr int VEC = Source::VEC;
    static constexpr bool ALONG = Source::ALONG_DEPTH;
    static constexpr int LINE = ROWS + 4;  // elements between depths in shared memory
    static constexpr int VECTORS = ROWS * BK / VEC;
    static constexpr int COUNT = int(ceil_div(VECTORS, THREADS));  // vectors of a thread
    // Vectors that lie side by side; threads keep to their rows if these fit one another.
    static constexpr int ACROSS = ALONG ? BK / VEC : ROWS / VEC;
    static constexpr int PLACES = ALONG ? COUNT : int(ceil_div(ROWS / VEC, THREADS));
    static_assert(ALONG || THREADS % ACROSS == 0 || ACROSS % THREADS == 0);
    static_assert(VECTORS * VEC == ROWS * BK && ACROSS > 0);

    const Source& source;
    typename Source::Place place[PLACES];
    f32 value[COUNT][VEC];

    __device__ TileLoader(const Source& from, i64 first_row) : source(from) {
#pragma unroll
        for (int j = 0; j < PLACES; ++j) place[j] = source.place(first_row + row(j));
    }

    __device__ static int row(int j) {
        const int vector = int(threadIdx.x) + j * THREADS;
        return ALONG ? vector / ACROSS : vector % ACROSS * VEC;
    }
    __device__ static int depth(int j) {
        const int vector = int(threadIdx.x) + j * THREADS;
        return ALONG ? vector % ACROSS * VEC : vector / ACROSS;
    }
    // Whether the thread's j-th vector exists.
    __device__ static bool mine(int j) {
        return VECTORS % THREADS == 0 || int(threadIdx.x) + j * THREADS < VECTORS;
    }

    // Start reading the tile whose depth begins at k.
    __device__ void fetch(i32 k) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j)
            if (mine(j)) source.load(place[j % PLACES], k + depth(j), value[j]);
    }

    // Put the tile that was read into shared memory, depth by depth.
    __device__ void store(f32* tile) const {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) {
            if (!mine(j)) continue;
            if constexpr (!ALONG && VEC == 4) {
                *reinterpret_cast<float4*>(tile + depth(j) * LINE + row(j)) =
                    make_float4(value[j][0], value[j][1], value[j][2], value[j][3]);
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    tile[(depth(j) + (ALONG ? v : 0)) * LINE + row(j) + (ALONG ? 0 : v)] =
                        value[j][v];
            }
        }
    }
};

// The tile's shape and the thread's place in it. A thread's rows are groups of four neighbours,
// the groups spread over the tile; so are its columns.
template <class P>
struct Tile {
    static constexpr int BM = P::BM, BN = P::BN, BK = P::BK, TM = P::TM, TN = P::TN;
    static constexpr int THREADS = (BM / TM) * (BN / TN);
    static constexpr bool TOGETHER = true;  // four columns lie side by side
    static_assert(TM % 4 == 0 && TN % 4 == 0 && BM % TM == 0 && BN % TN == 0);

    __device__ static int row(int i) {
        return i / 4 * (4 * (BM / TM)) + int(threadIdx.x) / (BN / TN) * 4 + i % 4;
    }
    __device__ static int col(int j) {
        return j / 4 * (4 * (BN / TN)) + int(threadIdx.x) % (BN / TN) * 4 + j % 4;
    }
};

// Four elements at a time from shared memory.
template <int COUNT>
__device__ __forceinline__ void load_fours(f32 (&value)[COUNT], const f32* from, int step) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i / 4 * step);
        value[i] = four.x, value[i + 1] = four.y, value[i + 2] = four.z, value[i + 3] = four.w;
    }
}

template <class P, class A, class B>
__device__ __forceinline__ void multiply_tiles(f32 (&sum)[Tile<P>::TM][Tile<P>::TN], const A& rows,
                                               i64 first_row, const B& cols, i64 first_col,
                                               i32 depth) {
    using T = Tile<P>;
    using LoaderA = TileLoader<A, T::BM, T::BK, T::THREADS>;
    using LoaderB = TileLoader<B, T::BN, T::BK, T::THREADS>;
    __shared__ __align__(16) f32 a_tile[2][T::BK * LoaderA::LINE];
    __shared__ __align__(16) f32 b_tile[2][T::BK * LoaderB::LINE];
    LoaderA a(rows, first_row);
    LoaderB b(cols, first_col);
#pragma unroll
    for (int i = 0; i < T::TM; ++i)
#pragma unroll
        for (int j = 0; j < T::TN; ++j) sum[i][j] = 0.0f;
    a.fetch(0);
    b.fetch(0);
    a.store(a_tile[0]);
    b.store(b_tile[0]);
    __syncthreads();
    for (i32 k = 0, now = 0; k < depth; k += T::BK, now = 1 - now) {
        const bool more = k + T::BK < depth;
        if (more) {
            a.fetch(k + T::BK);
            b.fetch(k + T::BK);
        }
#pragma unroll
        for (int step = 0; step < T::BK; ++step) {
            f32 left[T::TM], right[T::TN];
            load_fours(left, a_tile[now] + step * LoaderA::LINE + T::row(0), 4 * (T::BM / T::TM));
            load_fours(right, b_tile[now] + step * LoaderB::LINE + T::col(0), 4 * (T::BN / T::TN));
#pragma unroll
            for (int i = 0; i < T::TM; ++i)
#pragma unroll
                for (int j = 0; j < T::TN; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
        }
        if (more) {
            a.store(a_tile[1 - now]);
            b.store(b_tile[1 - now]);
        }
        __syncthreads();
    }
}

// VEC neighbours from global memory if `inside`, else zeros; the address may then be nonsense.
template <int VEC>
__device__ __forceinline__ void load_or_zero(f32 (&value)[VEC], const f32* from, i64 offset,
                                             bool inside) {
    if constexpr (VEC == 4) {
        const float4 four = inside ? *reinterpret_cast<const float4*>(from + offset)
                                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
    } else {
#pragma unroll
        for (int v = 0; v < VEC; ++v) value[v] = inside ? from[offset + v] : 0.0f;
    }
}

// Writes up to four neighbours: those whose number, from `first` on, is below `count`. With ALIGNED
// they are all there or all absent, and lie on a multiple of 16 bytes.
template <bool ALIGNED>
__device__ __forceinline__ void store_fours(f32* to, const f32* value, i64 first, i64 count) {
    if constexpr (ALIGNED) {
        if (first < count) store_float4(to, value[0], value[1], value[2], value[3]);
    } else {
#pragma unroll
        for (int v = 0; v < 4; ++v)
            if (first + v < count) to[v] = value[v];
    }
}

// The offset of a row that does not exist.
constexpr i64 ABSENT = -1;

// A row-major matrix (rows, WIDTH) read along its rows, which are the depth.
template <i64 WIDTH>
struct DepthInRows {
    static constexpr int VEC = WIDTH % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = true;
    using Place = i64;  // offset of the row, or ABSENT

    const f32* data;
    i64 rows;

    __device__ Place place(i64 row) const { return row < rows ? row * WIDTH : ABSENT; }
    // Where an element lies; false if there is none.
    __device__ bool find(const Place& row, i32 k, i64& offset) const {
        offset = row + k;
        return row != ABSENT && k < WIDTH;
    }
    __device__ void load(const Place& row, i32 k, f32 (&value)[VEC]) const {
        i64 offset;
        const bool inside = find(row, k, offset);
        load_or_zero(value, data, offset, inside);
    }
};

// A row-major matrix (depth, WIDTH) whose columns are the tile's rows. With ONES, one more column
// of ones follows: its products are sums.
template <i64 WIDTH, bool ONES = false>
struct DepthInColumns {
    static constexpr int VEC = WIDTH % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = false;
    using Place = i64;

    const f32* data;
    i32 depth;

    __device__ Place place(i64 col) const { return col; }
    __device__ void load(const Place& col, i32 k, f32 (&value)[VEC]) const {
        load_or_zero(value, data, k * WIDTH + col, col < WIDTH && k < depth);
        if (ONES && col == WIDTH && k < depth) value[0] = 1.0f;
    }
};
