// 3x3 filters (KRSC) as minimal filtering multiplies with them: U = G g G^T, 16 numbers for nine.
//
// With DGRAD those of the input gradient: turned by 180 degrees, channels and filters changed over.
// U lies as blocks of device/winograd.cuh copy it: (FILTERS filters, CHUNK channels, position,
// channel, filter), with 0 for channels that a last chunk has too many. One thread a filter and
// channel.
// Source: Lavin and Gray, "Fast algorithms for convolutional neural networks" (arXiv 1509.09308).
// Limit: writing U, 64 bytes for 36 of weights.
#include "device/index.cuh"

// G times three weights.
__device__ __forceinline__ void winograd_weights(const f32 (&g)[3], f32 (&u)[4]) {
    const f32 outer = 0.5f * (g[0] + g[2]), inner = 0.5f * g[1];
    u[0] = g[0];
    u[1] = outer + inner;
    u[2] = outer - inner;
    u[3] = g[2];
}

template <class P>
__global__ void winograd_filters_naive(const f32* w, f32* u) {
    constexpr bool DGRAD = P::DGRAD != 0;
    constexpr i64 DEPTH = DGRAD ? P::K : P::C, COUNT = DGRAD ? P::C : P::K;
    constexpr i64 CHUNKS = ceil_div(DEPTH, P::CHUNK), LINE = P::CHUNK * P::FILTERS;
    static_assert(COUNT % P::FILTERS == 0);
    const i64 i = global_thread();
    if (i >= COUNT * CHUNKS * P::CHUNK) return;
    const i64 filter = i / (CHUNKS * LINE) * P::FILTERS + i % P::FILTERS;
    const i64 depth = i / P::FILTERS % (CHUNKS * P::CHUNK);
    f32 rows[4][3], row[4], column[3];
#pragma unroll
    for (int s = 0; s < 3; ++s) {
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            const i64 at = DGRAD ? (depth * 9 + 3 * (2 - r) + 2 - s) * P::C + filter
                                 : (filter * 9 + 3 * r + s) * P::C + depth;
            column[r] = depth < DEPTH ? w[at] : 0.0f;
        }
        winograd_weights(column, row);
#pragma unroll
        for (int p = 0; p < 4; ++p) rows[p][s] = row[p];
    }
    f32* to = u + i / LINE * (16 * LINE) + i % LINE;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        winograd_weights(rows[p], row);
#pragma unroll
        for (int q = 0; q < 4; ++q) to[(4 * p + q) * LINE] = row[q];
    }
}
