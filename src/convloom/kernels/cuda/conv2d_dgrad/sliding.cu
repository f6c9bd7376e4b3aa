// Gradient of the input of a 3x3 convolution of stride 1 that 2x2 pooling of stride 2 followed, all
// products; 0 where a <= 0 with MASK.
//
// A block makes 16 channels of IMAGES images, for which all filters lie in shared memory. A thread
// has one channel of a strip of WIDE window columns and slides down it, TALL window rows a step:
// gradients are spread to all four cells of their windows in shared memory, four filters together,
// and each is multiplied with the 3x3 weights of its filter onto the patch of inputs that the
// step's outputs met, in registers. Of the patch the upper rows are then done; the two below stay
// for the next step. The two columns that the next strip meets too go there through shared memory.
// Against sparse: more than twice as many products, but 20 of them for 16 bytes of shared memory
// read, not seven.
// Limit: 2*K*R*S FLOPs an output of the convolution.
#include "device/activation.cuh"
#include "device/conv.cuh"
#include "device/tile.cuh"

template <class P>
struct Sliding {
    static constexpr int CHANNELS = 16, FOURS = int(P::K / 4), IMAGES = int(P::IMAGES);
    static constexpr int TALL = 2 * int(P::TALL), WIDE = 2 * int(P::WIDE);  // outputs of a step
    static constexpr int HIGH = TALL + 2, BROAD = WIDE + 2;                 // inputs that they met
    static constexpr int ROWS = int(Conv<P>::POOL_ROWS), COLS = int(Conv<P>::POOL_COLS);
    static constexpr int STEPS = ROWS / int(P::TALL), ACROSS = COLS / int(P::WIDE);
    static constexpr int STRIPS = IMAGES * ACROSS, THREADS = STRIPS * CHANNELS;
    static constexpr int BLOCK = int(round_up(THREADS, 32));
    // Gradients of four filters: (image, row, column); odd, so that filters lie in other banks.
    static constexpr int PLANE = IMAGES * TALL * 2 * COLS + 1;
    static constexpr int WEIGHTS = 9 * CHANNELS;  // fours of weights of four filters
    static constexpr int RIM = TALL * 2;          // inputs that a strip leaves to the next one
    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::R == 3 && P::S == 3 && P::C % CHANNELS == 0 && P::K % 4 == 0);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);
    static_assert(ROWS % P::TALL == 0 && COLS % P::WIDE == 0);

    using Patch = f32[HIGH][BROAD];

    // Copies the weights of 16 channels: (four filters, tap, channel).
    __device__ __forceinline__ static void copy_weights(float4* to, const f32* w) {
        for (int i = threadIdx.x; i < FOURS * WEIGHTS; i += BLOCK) {
            const int channel = i % CHANNELS, tap = i / CHANNELS % 9, four = i / WEIGHTS;
            const f32* from = w + 4 * four * Conv<P>::DEPTH + tap * P::C + channel;
            to[i] = make_float4(from[0], from[Conv<P>::DEPTH], from[2 * Conv<P>::DEPTH],
                                from[3 * Conv<P>::DEPTH]);
        }
    }
    // Spreads a step's gradients of the block's images, from the first of `left` on.
    __device__ __forceinline__ static void spread(float4* to, const f32* dyp, const u8* index,
                                                  i32 step, i64 left) {
        constexpr int LINE = COLS * FOURS, PART = int(P::TALL) * LINE;
        for (int i = threadIdx.x; i < IMAGES * PART; i += BLOCK) {
            const int image = i / PART, rest = i % PART, four = rest % FOURS;
            const int row = rest / LINE, col = rest / FOURS % COLS;
            const i64 from = image * Conv<P>::POOLED_SIZE + step * i64(4 * PART) + 4 * rest;
            float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            u32 cells = 0;  // one a byte
            if (image < left) {
                value = *reinterpret_cast<const float4*>(dyp + from);
                cells = *reinterpret_cast<const u32*>(index + from);
            }
            float4* at = to + four * PLANE + ((image * TALL + 2 * row) * COLS + col) * 2;
#pragma unroll
            for (int cell = 0; cell < 4; ++cell)
                at[cell / 2 * 2 * COLS + cell % 2] =
                    make_float4((cells & 255) == cell ? value.x : 0.0f,
                                (cells >> 8 & 255) == cell ? value.y : 0.0f,
                                (cells >> 16 & 255) == cell ? value.z : 0.0f,
                                cells >> 24 == cell ? value.w : 0.0f);
        }
    }
    // Adds a step's products; `gradients` and `weights` are the thread's first.
    __device__ __forceinline__ static void multiply(Patch& patch, const float4* gradients,
                                                    const float4* weights) {
#pragma unroll 1
        for (int four = 0; four < FOURS; ++four) {
            float4 weight[9];
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) weight[tap] = weights[tap * CHANNELS];
#pragma unroll
            for (int row = 0; row < TALL; ++row) {
                float4 g[WIDE];
#pragma unroll
                for (int col = 0; col < WIDE; ++col) g[col] = gradients[row * 2 * COLS + col];
#pragma unroll
                for (int v = 0; v < 4; ++v)
#pragma unroll
                    for (int tap = 0; tap < 9; ++tap)
#pragma unroll
                        for (int col = 0; col < WIDE; ++col) {
                            f32& sum = patch[row + tap / 3][col + tap % 3];
                            sum = fmaf(part(g[col], v), part(weight[tap], v), sum);
                        }
            }
            gradients += PLANE;
            weights += WEIGHTS;
        }
    }
    __device__ __forceinline__ static f32 part(const float4& four, int v) {
        return v == 0 ? four.x : v == 1 ? four.y : v == 2 ? four.z : four.w;
    }
    // Writes the first COUNT rows of the patch, whose first input is (row, col) and lies at `offset`
    // in a and dx. The last strip has two columns more than the others.
    template <int COUNT>
    __device__ __forceinline__ static void write(const Patch& patch, const f32* a, f32* dx,
                                                 i64 offset, i32 row, i32 col, bool last) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (row + i < 0 || row + i >= P::H) continue;
            f32 kept[BROAD];  // all are on their way before any is waited for
#pragma unroll
            for (int pass = P::MASK != 0 ? 0 : 1; pass < 2; ++pass)
#pragma unroll
                for (int j = 0; j < BROAD; ++j) {
                    const bool own = (j < WIDE || last) && (P::PW == 0 || col + j >= 0) &&
                                     ((P::PW == 0 && j < WIDE) || col + j < P::W);
                    const i64 at = offset + (i * P::W + j) * P::C;
                    if (!own) continue;
                    if (pass == 0)
                        kept[j] = a[at];
                    else
                        dx[at] = P::MASK != 0 ? masked(patch[i][j], kept[j]) : patch[i][j];
                }
        }
    }
};

template <class P>
__global__ void __launch_bounds__(Sliding<P>::BLOCK, P::BLOCKS)
    conv2d_dgrad_sliding(const f32* dyp, const u8* index, const f32* w, const f32* a, f32* dx,
                         i64 n) {
    using Kit = Sliding<P>;
    constexpr int TALL = Kit::TALL, WIDE = Kit::WIDE;
    constexpr i64 PARTS = P::C / Kit::CHANNELS;
    extern __shared__ __align__(128) unsigned char smem_raw[];
    float4* weights = reinterpret_cast<float4*>(smem_raw);
    float4* gradients = weights + Kit::FOURS * Kit::WEIGHTS;
    f32* rims = reinterpret_cast<f32*>(gradients + Kit::FOURS * Kit::PLANE);  // (RIM, thread)
    const i64 first = blockIdx.x / PARTS * Kit::IMAGES;  // image
    const bool busy = threadIdx.x < Kit::THREADS;  // the last warp may have threads too many
    const int channel = int(threadIdx.x) % Kit::CHANNELS;
    const int strip = busy ? int(threadIdx.x) / Kit::CHANNELS % Kit::ACROSS : 0;
    const int image = busy ? int(threadIdx.x) / Kit::CHANNELS / Kit::ACROSS : 0;
    const i64 channels = blockIdx.x % PARTS * Kit::CHANNELS;
    const bool writes = busy && first + image < n, last = strip == Kit::ACROSS - 1;
    const float4* own = gradients + image * TALL * 2 * Kit::COLS + strip * WIDE;
    const i32 col = strip * WIDE - i32(P::PW);
    i32 row = -i32(P::PH);
    i64 offset = Conv<P>::x_offset(first + image, channels + channel, row, col);
    dyp += first * Conv<P>::POOLED_SIZE, index += first * Conv<P>::POOLED_SIZE;
    Kit::copy_weights(weights, w + channels);
    typename Kit::Patch patch = {};
#pragma unroll 1
    for (i32 step = 0; step < Kit::STEPS; ++step) {
        Kit::spread(gradients, dyp, index, step, n - first);
        __syncthreads();
        Kit::multiply(patch, own, weights + channel);
        if (busy)
#pragma unroll
            for (int i = 0; i < Kit::RIM; ++i)
                rims[i * Kit::THREADS + threadIdx.x] = patch[i / 2][WIDE + i % 2];
        __syncthreads();  // gradients are done with, too
        if (strip > 0)
#pragma unroll
            for (int i = 0; i < Kit::RIM; ++i)
                patch[i / 2][i % 2] += rims[i * Kit::THREADS + threadIdx.x - Kit::CHANNELS];
        if (writes) Kit::template write<TALL>(patch, a, dx, offset, row, col, last);
#pragma unroll
        for (int i = 0; i < Kit::HIGH; ++i)
#pragma unroll
            for (int j = 0; j < Kit::BROAD; ++j)
                patch[i][j] = i < 2 ? patch[i + TALL][j] : 0.0f;
        row += TALL, offset += TALL * P::W * P::C;
    }
    // The two rows below the last outputs.
    __syncthreads();
    if (busy)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            rims[i * Kit::THREADS + threadIdx.x] = patch[i / 2][WIDE + i % 2];
    __syncthreads();
    if (!writes) return;
    if (strip > 0)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            patch[i / 2][i % 2] += rims[i * Kit::THREADS + threadIdx.x - Kit::CHANNELS];
    Kit::template write<2>(patch, a, dx, offset, row, col, last);
    // Inputs that no window's outputs met.
    constexpr i32 END_ROW = 2 * Kit::ROWS + 2 - i32(P::PH), END_COL = 2 * Kit::COLS + 2 - i32(P::PW);
    if constexpr (END_ROW < P::H || END_COL < P::W) {
        const i64 origin = Conv<P>::x_offset(first + image, channels + channel, 0, 0);
        for (int i = strip; i < P::H * P::W; i += Kit::ACROSS)
            if (i / P::W >= END_ROW || i % P::W >= END_COL) dx[origin + i * P::C] = 0.0f;
    }
}
