// Convolution of many small groups (device/conv_groups.cuh) with bias and activation (ACT)
//
// A thread makes four filters of TQ neighbouring outputs of a row: an input is loaded once for all
// taps of a row that meet it. A block's filters lie in shared memory, and serve `turns` tiles of
// each thread. Padding is multiplied like any other 0.
// Against the tiles of conv2d_fprop: no multiplications with filters of other groups.
// Limit: memory where groups are small; about four loads from the first-level cache an output.
#include "device/activation.cuh"
#include "device/conv_groups.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(GROUP_THREADS)
    conv2d_groups_fprop_tiled(const f32* x, const f32* w, const f32* bias, f32* y, i64 n,
                              i64 turns) {
    using S = Groups<P, false>;
    __shared__ __align__(16) f32 filters[S::TAPS * S::SUMMED * 4 * S::ACROSS];
    S::stage(filters, w);
    const int lane = threadIdx.x % S::ACROSS;
    const i64 k = (blockIdx.x % S::LANES * S::ACROSS + lane) * 4;
    if (k >= P::K) return;
    float4 start = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (P::BIAS != 0) start = make_float4(bias[k], bias[k + 1], bias[k + 2], bias[k + 3]);
    i64 unit = blockIdx.x / S::LANES * turns * S::DOWN + threadIdx.x / S::ACROSS;
    for (i64 turn = 0; turn < turns && unit < n * S::UNITS; ++turn, unit += S::DOWN) {
        const i64 image = unit / S::UNITS;
        const u32 rest = u32(unit % S::UNITS);
        const i32 row = i32(rest / u32(S::TILES)), tile = i32(rest % u32(S::TILES));
        f32 sum[S::TQ][4];
#pragma unroll
        for (int j = 0; j < S::TQ; ++j)
            sum[j][0] = start.x, sum[j][1] = start.y, sum[j][2] = start.z, sum[j][3] = start.w;
        S::add_taps(sum, x, image, row, tile, k, filters + 4 * lane);
        f32* to = y + ((image * P::OH + row) * P::OW + tile * S::TQ) * P::K + k;
#pragma unroll
        for (int j = 0; j < S::TQ; ++j) {
            if (tile * S::TQ + j >= P::OW) continue;
#pragma unroll
            for (int v = 0; v < 4; ++v) sum[j][v] = activated<P>(sum[j][v]);
            store_float4(to + j * P::K, sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
        }
    }
}
