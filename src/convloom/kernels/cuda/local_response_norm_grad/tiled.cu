// dx = dy d^-beta - factor x (sum of t over the windows that hold x's channel), t = dy x d^(-beta-1)
//
// With RELU 0 where x <= 0. A warp takes a pixel at a time; squares, then t, of its C channels lie in
// shared memory with zeros around them.
// Against naive: each d is computed once, memory is read once, and the usual power takes two roots.
// Limit: 12 bytes of memory traffic an element.
#include "device/activation.cuh"
#include "device/response.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    local_response_norm_grad_tiled(const f32* dy, const f32* x, f32* dx, i64 pixels, f32 k,
                                   f32 scale, f32 beta, f32 factor) {
    constexpr int C = P::C, WARPS = 8, EACH = (C + 31) / 32, REACH = P::LOW + P::HIGH;
    __shared__ f32 shared[2][WARPS][C + REACH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    f32 *squares = shared[0][warp] + P::LOW, *parts = shared[1][warp] + P::HIGH;
    for (int i = lane; i < REACH; i += 32) {
        squares[i < P::LOW ? i - P::LOW : C + i - P::LOW] = 0;
        parts[i < P::HIGH ? i - P::HIGH : C + i - P::HIGH] = 0;
    }
    const Response response = {k, scale, beta};
    for (i64 pixel = i64(blockIdx.x) * WARPS + warp; pixel < pixels; pixel += gridDim.x * WARPS) {
        f32 held[EACH], passed[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int c = lane + 32 * e;
            held[e] = c < C ? x[pixel * C + c] : 0.0f;
            passed[e] = c < C ? dy[pixel * C + c] : 0.0f;
            if (c < C) squares[c] = held[e] * held[e];
        }
        __syncwarp();
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int c = lane + 32 * e;
            if (c >= C) continue;
            f32 sum = squares[c - P::LOW];
#pragma unroll
            for (int i = 1 - P::LOW; i <= P::HIGH; ++i) sum += squares[c + i];
            const f32 d = response.denominator(sum);
            passed[e] *= response.quick_factor<P::QUARTERS>(d);
            parts[c] = passed[e] * held[e] / d;
        }
        __syncwarp();
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int c = lane + 32 * e;
            if (c >= C) continue;
            f32 sum = parts[c - P::HIGH];
#pragma unroll
            for (int i = 1 - P::HIGH; i <= P::LOW; ++i) sum += parts[c + i];
            const f32 total = passed[e] - factor * held[e] * sum;
            dx[pixel * C + c] = P::RELU != 0 ? masked(total, held[e]) : total;
        }
        __syncwarp();
    }
}
