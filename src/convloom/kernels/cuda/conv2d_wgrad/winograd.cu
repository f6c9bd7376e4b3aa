// Gradients of filters and, with BIAS, of the bias, of a 3x3 convolution of stride 1 that 2x2 pooling
// followed, by minimal filtering (device/winograd_wgrad.cuh says how).
//
// A block owns 32 filters and 16 channels, and `chunk` windows, sixteen at a time: half of its
// threads transform the inputs that these met, four channels of a window each, the others the
// gradients, and all multiply. A sum that is not finite is made again of the products themselves,
// since transforms turn infinities into NaN and spread them. Block c of the windows writes at
// dw + c * stride and db + c * stride, in KRSC order; sum_partials adds several up.
// Against sparse: nearly twice as many products, but 16 of them for 16 bytes of shared memory read.
// Limit: 32*K*C FLOPs a window.
#include "device/winograd_wgrad.cuh"

template <class P>
__global__ void __launch_bounds__(128, 4)
    conv2d_wgrad_winograd(const f32* x, const f32* dyp, const u8* index, f32* dw, f32* db, i64 n,
                          i64 chunk, i64 stride) {
    using Kit = WinogradWgrad<P>;
    constexpr int HALF = Kit::HALF, WINDOWS = Kit::WINDOWS, FILTERS = Kit::FILTERS;
    constexpr i64 ACROSS = P::K / FILTERS, PARTS = P::C / Kit::CHANNELS;
    extern __shared__ __align__(128) unsigned char smem_raw[];
    f32* gradients = reinterpret_cast<f32*>(smem_raw);
    f32* inputs = gradients + Kit::POSITIONS * Kit::GRADIENTS;
    f32* biases = inputs + Kit::POSITIONS * Kit::INPUTS;  // (thread / 8, filter)
    const i64 filter = blockIdx.x % ACROSS * FILTERS;
    const i64 channel = blockIdx.x / ACROSS % PARTS * Kit::CHANNELS;
    const i64 number = blockIdx.x / (ACROSS * PARTS), first = number * chunk;
    const i64 last = least(first + chunk, n * (Kit::ROWS * Kit::COLS));
    const u32 thread = threadIdx.x % HALF;
    const bool takes_inputs = threadIdx.x < HALF;
    // Four channels of one window, or four filters of two, and where they lie.
    const i64 own_window = first + thread / (takes_inputs ? 4 : 8);
    typename Kit::Patches patches(own_window);
    i64 at = own_window * P::K + filter + thread % 8 * 4;
    if (takes_inputs)
        at = Conv<P>::x_offset(patches.image(own_window), channel + thread % 4 * 4,
                               patches.row - i32(P::PH), patches.col - i32(P::PW));
    const typename Kit::Own own;
    f32 sum[8][8] = {};
    if (P::BIAS != 0 && !takes_inputs)
        reinterpret_cast<float4*>(biases)[thread] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (i32 left = i32(last - first); left > 0; left -= WINDOWS) {
        if (takes_inputs) {
            const i32 row = patches.row - i32(P::PH), col = patches.col - i32(P::PW);
            // Behind the last window any other will do: gradients are 0.
            const i64 from = i32(thread / 4) < left ? at : Conv<P>::x_offset(0, 0, row, col);
            Kit::put_inputs(inputs + 4 * thread, x + from, row, col);
            at += patches.move();
        } else {
            constexpr int STEP = HALF / 8;  // windows of a pass
            f32 g[2][4];
            u32 cells[2];
#pragma unroll
            for (int pass = 0; pass < 2; ++pass) {
                const bool there = left >= WINDOWS || i32(thread / 8) + pass * STEP < left;
                load_or_zero(g[pass], dyp + at, pass * STEP * P::K, there);
                cells[pass] =
                    there ? *reinterpret_cast<const u32*>(index + at + pass * STEP * P::K) : 0;
            }
            at += WINDOWS * P::K;
#pragma unroll
            for (int pass = 0; pass < 2; ++pass)
                Kit::put_gradients(gradients + 4 * (thread + pass * HALF), g[pass], cells[pass]);
            if (P::BIAS != 0) {
                float4* bias = reinterpret_cast<float4*>(biases) + thread;
                *bias = make_float4(bias->x + (g[0][0] + g[1][0]), bias->y + (g[0][1] + g[1][1]),
                                    bias->z + (g[0][2] + g[1][2]), bias->w + (g[0][3] + g[1][3]));
            }
        }
        __syncthreads();
        Kit::multiply(sum, gradients, inputs, own);
        __syncthreads();  // these windows are done with
    }
    Kit::put_sums(gradients, sum, own);
    __syncthreads();
    for (int i = threadIdx.x; i < Kit::SUMS; i += Kit::THREADS) {
        const i64 k = filter + i / Kit::CHANNELS, c = channel + i % Kit::CHANNELS;
        f32 value[9];
        if (!Kit::filter(value, gradients + i))
            Kit::direct(value, x, dyp, index, k, c, first, last);
        f32* to = dw + number * stride + k * Conv<P>::DEPTH + c;
#pragma unroll
        for (int tap = 0; tap < 9; ++tap) to[tap * P::C] = value[tap];
    }
    if (P::BIAS == 0 || channel != 0 || threadIdx.x >= FILTERS) return;
    f32 total = 0.0f;
    for (int i = 0; i < HALF / 8; ++i) total += biases[i * FILTERS + threadIdx.x];
    db[number * stride + filter + threadIdx.x] = total;
}
