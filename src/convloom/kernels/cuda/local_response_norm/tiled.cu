// y = x (k + scale * (sum of squares over neighbouring channels))^-beta
//
// A warp takes a pixel at a time; the squares of its C channels lie in shared memory with zeros
// around them, so that a window is a few reads at constant offsets.
// Against naive: memory is read once, no window is clipped, and the usual power takes two roots.
// Limit: 8 bytes of memory traffic an element.
#include "device/response.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    local_response_norm_tiled(const f32* x, f32* y, i64 pixels, f32 k, f32 scale, f32 beta) {
    constexpr int C = P::C, WARPS = 8, EACH = (C + 31) / 32, REACH = P::LOW + P::HIGH;
    __shared__ f32 shared[WARPS][C + REACH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    f32* squares = shared[warp] + P::LOW;
    for (int i = lane; i < REACH; i += 32) squares[i < P::LOW ? i - P::LOW : C + i - P::LOW] = 0;
    const Response response = {k, scale, beta};
    for (i64 pixel = i64(blockIdx.x) * WARPS + warp; pixel < pixels; pixel += gridDim.x * WARPS) {
        f32 held[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int c = lane + 32 * e;
            held[e] = c < C ? x[pixel * C + c] : 0.0f;
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
            y[pixel * C + c] = held[e] * response.quick_factor<P::QUARTERS>(response.denominator(sum));
        }
        __syncwarp();
    }
}
