// Input gradient of a convolution of many small groups (device/conv_groups.cuh), behind the
// activation that made the input (MASK)
//
// As conv2d_groups_fprop with the sides exchanged: a thread makes four channels of TQ neighbouring
// inputs of a row, TQ a multiple of the stride, so that each column's taps are known when compiled.
// Limit: memory where groups are small.
#include "device/activation.cuh"
#include "device/conv_groups.cuh"
#include "device/ptx.cuh"

template <class P>
__global__ void __launch_bounds__(GROUP_THREADS)
    conv2d_groups_dgrad_tiled(const f32* dy, const f32* w, const f32* a, f32* dx, i64 n,
                              i64 turns) {
    using S = Groups<P, true>;
    __shared__ __align__(16) f32 filters[S::TAPS * S::SUMMED * 4 * S::ACROSS];
    S::stage(filters, w);
    const int lane = threadIdx.x % S::ACROSS;
    const i64 c = (blockIdx.x % S::LANES * S::ACROSS + lane) * 4;
    if (c >= S::OUT_C) return;
    i64 unit = blockIdx.x / S::LANES * turns * S::DOWN + threadIdx.x / S::ACROSS;
    for (i64 turn = 0; turn < turns && unit < n * S::UNITS; ++turn, unit += S::DOWN) {
        const i64 image = unit / S::UNITS;
        const u32 rest = u32(unit % S::UNITS);
        const i32 row = i32(rest / u32(S::TILES)), tile = i32(rest % u32(S::TILES));
        f32 sum[S::TQ][4] = {};
        S::add_taps(sum, dy, image, row, tile, c, filters + 4 * lane);
        const i64 to = ((image * P::H + row) * P::W + tile * S::TQ) * S::OUT_C + c;
#pragma unroll
        for (int j = 0; j < S::TQ; ++j) {
            if (tile * S::TQ + j >= P::W) continue;
            if constexpr (P::MASK != 0) {
                const float4 y = *reinterpret_cast<const float4*>(a + to + j * S::OUT_C);
                sum[j][0] = gated<P>(sum[j][0], y.x), sum[j][1] = gated<P>(sum[j][1], y.y);
                sum[j][2] = gated<P>(sum[j][2], y.z), sum[j][3] = gated<P>(sum[j][3], y.w);
            }
            store_float4(dx + to + j * S::OUT_C, sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
        }
    }
}
