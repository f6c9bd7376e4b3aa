// Gradients of filters and, with BIAS, of the bias, of a 3x3 convolution of stride 1 by minimal
// filtering (device/winograd_wgrad.cuh says how). Where 2x2 pooling followed (POOL), dy is the
// gradient of the pooled map and `index` says which cell of its window each belongs to.
//
// A block owns 32 filters and 16 channels, and `chunk` windows of 2x2 outputs, sixteen at a time: half
// of its threads transform the inputs that these met, the others the gradients, and all multiply. What
// of dw is not finite is made again of the products themselves, since transforms turn infinities into
// NaN and spread them, and overflow early. Block c of the windows writes at dw + c * stride and
// db + c * stride, in KRSC order; sum_partials adds several up.
// Against sparse: nearly twice as many products, but 16 of them for 16 bytes of shared memory read.
// Against tiled: fewer than half of the products.
// Limit: 32*K*C FLOPs a window.
#include "device/winograd_wgrad.cuh"

template <class P>
__global__ void __launch_bounds__(128, 4)
    conv2d_wgrad_winograd(const f32* x, const f32* dy, const u8* index, f32* dw, f32* db, i64 n,
                          i64 chunk, i64 stride) {
    using Kit = WinogradWgrad<P>;
    constexpr int HALF = Kit::HALF, WINDOWS = Kit::WINDOWS, FILTERS = Kit::FILTERS;
    constexpr i64 ACROSS = P::K / FILTERS, PARTS = P::C / Kit::CHANNELS;
    extern __shared__ __align__(128) unsigned char smem_raw[];
    f32* gradients = reinterpret_cast<f32*>(smem_raw);
    f32* inputs = gradients + Kit::POSITIONS * Kit::GRADIENTS;
    f32* biases = inputs + Kit::POSITIONS * Kit::INPUTS;  // (window, filter)
    const i64 filter = blockIdx.x % ACROSS * FILTERS;
    const i64 channel = blockIdx.x / ACROSS % PARTS * Kit::CHANNELS;
    const i64 number = blockIdx.x / (ACROSS * PARTS), first = number * chunk;
    const i64 last = least(first + chunk, n * (Kit::ROWS * Kit::COLS));
    const bool takes_inputs = threadIdx.x < HALF;
    // The thread's of the sixteen windows, and its channels or filters of the block, as the functions
    // say. Neighbouring windows begin with different halves of the filters: what is stored together
    // then lies in different banks.
    const u32 share = takes_inputs || P::POOL == 0 ? 4 : 8;  // threads of a window
    const u32 slot = threadIdx.x % HALF / share, four = threadIdx.x % share * 4;
    const u32 half = takes_inputs || P::POOL != 0 ? 0 : slot % 2 * 16;
    const i32 other = 16 - 2 * i32(half);
    const typename Kit::Own own;
    auto window = Kit::Windows::from(first + slot);
    i64 at = takes_inputs ? Conv<P>::x_offset(window.image, channel + four, window.row - i32(P::PH),
                                              window.col - i32(P::PW))
             : P::POOL != 0 ? (first + slot) * P::K + filter + four + half
                            : Conv<P>::y_offset(window.image, filter + four + half, window.row,
                                                window.col);
    f32 sum[8][8] = {};
    if (P::BIAS != 0)
        for (int i = threadIdx.x; i < WINDOWS * FILTERS; i += Kit::THREADS) biases[i] = 0.0f;
    __syncthreads();
#pragma unroll 1
    for (i32 left = i32(last - first); left > 0; left -= WINDOWS) {
        if (takes_inputs) {
            const i32 row = window.row - i32(P::PH), col = window.col - i32(P::PW);
            // Behind the last window any other will do: gradients are 0.
            const i64 from = i32(slot) < left ? at : Conv<P>::x_offset(0, 0, row, col);
            Kit::put_inputs(inputs + slot * Kit::CHANNELS + four, x + from, row, col);
            at += window.template move<P::C, P::W * P::C, Conv<P>::X_SIZE>();
        } else {
            const u32 place = slot * FILTERS + four + half;
            Kit::take_gradients(gradients + place, biases + place, dy, index, at, i32(slot), other,
                                left, window.row, window.col);
            if (P::POOL != 0)
                at += WINDOWS * P::K;
            else
                at += window.template move<P::K, P::OW * P::K, Conv<P>::Y_SIZE>();
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
            Kit::direct(value, x, dy, index, k, c, first, last);
        f32* to = dw + number * stride + k * Conv<P>::DEPTH + c;
#pragma unroll
        for (int tap = 0; tap < 9; ++tap) to[tap * P::C] = value[tap];
    }
    if (P::BIAS == 0 || channel != 0 || threadIdx.x >= FILTERS) return;
    f32 total = 0.0f;
    for (int i = 0; i < WINDOWS; ++i) total += biases[i * FILTERS + threadIdx.x];
    db[number * stride + filter + threadIdx.x] = total;
}
