// Products by tiles, fed by asynchronous copies: as device/tile.cuh, but operands go from global to
// shared memory without passing through registers, STAGES - 1 steps ahead.
//
// Both operands' Sources read four neighbours in depth at a time and say where these lie
// (`data`, `find`). A tile keeps its rows as they are, BK elements and a gap; a thread reads four
// depths of a row at once. Below sm_80, which has no such copies, they are plain ones.
#pragma once

#include "device/ptx.cuh"
#include "device/tile.cuh"

#if !defined(CONVLOOM_SIM) && __CUDA_ARCH__ < 800
#define CONVLOOM_PLAIN_COPIES
#endif

// Copy four floats, or zeros unless `inside`; the address may then be nonsense.
__device__ __forceinline__ void copy_four(f32* target, const f32* source, bool inside) {
#ifdef CONVLOOM_PLAIN_COPIES
    *reinterpret_cast<float4*>(target) = inside ? *reinterpret_cast<const float4*>(source)
                                                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#else
    cp_async_16_zfill(target, source, inside);
#endif
}

// Closes a group of copies.
__device__ __forceinline__ void close_copies() {
#ifndef CONVLOOM_PLAIN_COPIES
    cp_async_commit();
#endif
}

// Waits until all but the latest PENDING groups of this thread have arrived.
template <int PENDING>
__device__ __forceinline__ void await_copies() {
#ifndef CONVLOOM_PLAIN_COPIES
    cp_async_wait<PENDING>();
#endif
}

// The tile's shape and the thread's place in it: rows in groups of four neighbours as in Tile, but
// columns spread evenly, so that neighbouring threads read different banks.
template <class P>
struct AsyncTile : Tile<P> {
    static constexpr bool TOGETHER = false;
    static constexpr int STAGES = P::STAGES, BK = P::BK;
    static constexpr int PITCH = BK % 8 == 0 ? BK + 4 : BK + 8;  // an odd number of fours
    static constexpr int A_STAGE = Tile<P>::BM * PITCH, B_STAGE = Tile<P>::BN * PITCH;
    static_assert(BK % 4 == 0 && STAGES >= 2);

    __device__ static int col(int j) {
        constexpr int across = Tile<P>::BN / Tile<P>::TN;
        return j * across + int(threadIdx.x) % across;
    }
};

// Copies an operand's tiles: ROWS rows of BK elements, PITCH apart, by THREADS threads.
template <class Source, int ROWS, int BK, int PITCH, int THREADS>
struct AsyncLoader {
    static constexpr int ACROSS = BK / 4, VECTORS = ROWS * ACROSS;
    static constexpr int COUNT = int(ceil_div(VECTORS, THREADS));  // vectors of a thread
    static_assert(Source::VEC == 4);

    const Source& source;
    typename Source::Place place[COUNT];

    __device__ AsyncLoader(const Source& from, i64 first_row) : source(from) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) place[j] = source.place(first_row + vector(j) / ACROSS);
    }
    __device__ static int vector(int j) { return int(threadIdx.x) + j * THREADS; }

    // Start copying the tile whose depth begins at k.
    __device__ void start(i32 k, f32* tile) const {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) {
            if (VECTORS % THREADS != 0 && vector(j) >= VECTORS) continue;
            const int row = vector(j) / ACROSS, depth = vector(j) % ACROSS * 4;
            i64 offset;
            const bool inside = source.find(place[j], k + depth, offset);
            copy_four(tile + row * PITCH + depth, source.data + offset, inside);
        }
    }
};

template <class P, class A, class B>
__device__ __forceinline__ void multiply_async(f32 (&sum)[Tile<P>::TM][Tile<P>::TN],
                                               const A& rows, i64 first_row, const B& cols,
                                               i64 first_col, i32 depth) {
    using T = AsyncTile<P>;
    extern __shared__ __align__(128) unsigned char smem_raw[];
    f32* a_tiles = reinterpret_cast<f32*>(smem_raw);
    f32* b_tiles = a_tiles + T::STAGES * T::A_STAGE;
    const AsyncLoader<A, T::BM, T::BK, T::PITCH, T::THREADS> a(rows, first_row);
    const AsyncLoader<B, T::BN, T::BK, T::PITCH, T::THREADS> b(cols, first_col);
#pragma unroll
    for (int i = 0; i < T::TM; ++i)
#pragma unroll
        for (int j = 0; j < T::TN; ++j) sum[i][j] = 0.0f;
    const i32 steps = i32(ceil_div(depth, T::BK));
    const auto start = [&](i32 step) {
        if (step < steps) {
            a.start(step * T::BK, a_tiles + step % T::STAGES * T::A_STAGE);
            b.start(step * T::BK, b_tiles + step % T::STAGES * T::B_STAGE);
        }
        close_copies();  // also an empty group, so that groups count steps
    };
    for (int step = 0; step < T::STAGES - 1; ++step) start(step);
    for (i32 step = 0; step < steps; ++step) {
        await_copies<T::STAGES - 2>();
        // Everybody's copies are here, and everybody is done with the stage that is filled next.
        __syncthreads();
        start(step + T::STAGES - 1);
        const f32* a_tile = a_tiles + step % T::STAGES * T::A_STAGE;
        const f32* b_tile = b_tiles + step % T::STAGES * T::B_STAGE;
#pragma unroll
        for (int k = 0; k < T::BK; k += 4) {
            f32 left[T::TM][4];
#pragma unroll
            for (int i = 0; i < T::TM; ++i)
                load_fours(left[i], a_tile + T::row(i) * T::PITCH + k, 0);
#pragma unroll
            for (int j = 0; j < T::TN; ++j) {
                f32 right[4];
                load_fours(right, b_tile + T::col(j) * T::PITCH + k, 0);
#pragma unroll
                for (int v = 0; v < 4; ++v)
#pragma unroll
                    for (int i = 0; i < T::TM; ++i)
                        sum[i][j] = fmaf(left[i][v], right[v], sum[i][j]);
            }
        }
    }
}
