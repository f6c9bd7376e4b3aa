// Gradient of the input of a convolution that 2x2 pooling followed, one product in four
// (device/sparse.cuh says which); 0 where a <= 0 with MASK.
//
// A block makes 16 channels of a strip of an image: `strip` window rows, two input rows each. Four
// lanes take a window: they sum the 4x4 patch of inputs that it meets in registers, over all
// filters, whose weights they read from where the winner says. Of the rows and columns of a patch
// the middle ones always have a weight; of the outer ones one has, and the other is multiplied by
// a gradient of 0. Then patches are added to the strip in shared memory. Patches that overlap take
// turns: those of windows with even row and column, then even row and odd column, and so on, with a
// barrier between, so sums have one order. The window row above the strip falls on it too, and is
// computed by both blocks: a large batch has strips of whole images.
// Against tiled: fewer than half of the products.
// Limit: 16 bytes of shared memory read for seven multiply-adds.
#include "device/activation.cuh"
#include "device/sparse.cuh"

// The windows of a strip whose rows and columns have one parity.
struct WindowClass {
    i32 row, col;    // the first
    i32 cols;        // in a row
    i32 count;

    template <class P>
    __device__ static WindowClass of(int number, i32 above, i32 end) {
        const i32 row = above + (above + number / 2) % 2, col = number % 2;
        const i32 rows = end > row ? (end - row + 1) / 2 : 0;
        const i32 cols = (i32(Sparse<P>::COLS) - col + 1) / 2;
        return {row, col, cols, rows * cols};
    }
};

// Adds the products of four channels of a filter to a window's patch; `weights` is where tap (0, 0)
// of these lies.
template <class P>
__device__ __forceinline__ void add_patch(f32 (&patch)[4][4][4], const f32* weights, f32 g,
                                          u32 cell) {
    constexpr int COL = Sparse<P>::PLACE, ROW = 3 * COL;
    const bool low = cell & 2, right = cell & 1;
    // Row 1 of the patch meets row 1 - low of the filter, row 2 the next one; row 0 meets row 0 of
    // the filter unless low, row 3 row 2 if low. So do columns.
    const f32* middle = weights + (low ? 0 : ROW) + (right ? 0 : COL);
    const int outer_row = low ? 2 * ROW : -ROW, outer_col = right ? 2 * COL : -COL;
    const f32 top = low ? 0.0f : g, bottom = low ? g : 0.0f;
#pragma unroll
    for (int r = 1; r < 3; ++r) {
        const f32* row = middle + (r - 1) * ROW;
        add_product(patch[r][1], g, four_at(row));
        add_product(patch[r][2], g, four_at(row + COL));
        const float4 outer = four_at(row + outer_col);
        add_product(patch[r][0], right ? 0.0f : g, outer);
        add_product(patch[r][3], right ? g : 0.0f, outer);
    }
#pragma unroll
    for (int s = 1; s < 3; ++s) {
        const float4 outer = four_at(middle + outer_row + (s - 1) * COL);
        add_product(patch[0][s], top, outer);
        add_product(patch[3][s], bottom, outer);
    }
    const float4 corner = four_at(middle + outer_row + outer_col);
    add_product(patch[0][0], right ? 0.0f : top, corner);
    add_product(patch[0][3], right ? top : 0.0f, corner);
    add_product(patch[3][0], right ? 0.0f : bottom, corner);
    add_product(patch[3][3], right ? bottom : 0.0f, corner);
}

// The most threads of a block, which say how many registers a thread may have: 128, so that sixteen
// warps share a multiprocessor, but for GPUs whose compilers would then spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define CONVLOOM_SPARSE_THREADS 384
#else
#define CONVLOOM_SPARSE_THREADS 512
#endif

template <class P>
__global__ void __launch_bounds__(CONVLOOM_SPARSE_THREADS)
    conv2d_dgrad_sparse(const f32* dyp, const u8* index, const f32* w, const f32* a, f32* dx,
                        i64 strip, i64 n) {
    using Kit = Sparse<P>;
    constexpr int PLACE = Kit::PLACE, FOURS = Kit::CHANNELS / 4, FILTERS = P::FILTERS;
    constexpr i64 CHANNELS = P::C / Kit::CHANNELS, ROWS = (P::H - 1 + P::PH) / 2 + 1;
    static_assert(P::K % FILTERS == 0 && FILTERS % 4 == 0);
    extern __shared__ __align__(128) unsigned char smem_raw[];
    f32* weights = reinterpret_cast<f32*>(smem_raw);  // (FILTERS, 3, 3, PLACE)
    f32* tile = weights + FILTERS * 9 * PLACE;        // (2 * strip, W, 16)
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const i64 channels = blockIdx.x % CHANNELS * Kit::CHANNELS;  // the first of them
    const i64 strips = ceil_div(ROWS, strip), image = blockIdx.x / CHANNELS / strips;
    const i32 start = i32(blockIdx.x / CHANNELS % strips * strip);  // first window row
    const i32 top = 2 * start - i32(P::PH), height = 2 * i32(strip);  // in rows of the input
    for (int i = threadIdx.x; i < height * P::W * Kit::CHANNELS; i += blockDim.x) tile[i] = 0.0f;
    // Window rows from the one above the strip on.
    const i32 above = i32(greatest(start - 1, 0)), end = i32(least(start + strip, Kit::ROWS));
    int units = 0;  // of eight windows of one class
    for (int number = 0; number < 4; ++number)
        units += (WindowClass::of<P>(number, above, end).count + 7) / 8;
    for (int round = 0; round < units; round += warps) {
        int unit = round + warp, number = 0;
        WindowClass mine = WindowClass::of<P>(0, above, end);
        while (number < 3 && unit >= (mine.count + 7) / 8) {
            unit -= (mine.count + 7) / 8;
            mine = WindowClass::of<P>(++number, above, end);
        }
        const i32 i = unit * 8 + lane / 4;
        const bool busy = i < mine.count;
        const i32 row = busy ? mine.row + i / mine.cols * 2 : 0;
        const i32 col = busy ? mine.col + i % mine.cols * 2 : 0;
        const i64 from = ((image * Kit::ROWS + row) * Kit::COLS + col) * P::K;
        f32 patch[4][4][4] = {};
        float2 next = *reinterpret_cast<const float2*>(dyp + from);
        u32 next_cells[2] = {index[from], index[from + 1]};
        for (i32 k = 0; k < P::K; k += FILTERS) {
            __syncthreads();
            for (int j = threadIdx.x; j < FILTERS * 9 * FOURS; j += blockDim.x) {
                const i64 at = i64(k) * Conv<P>::DEPTH + j / FOURS * P::C + channels + j % FOURS * 4;
                f32 value[4];
                load_or_zero(value, w, at, true);
                Kit::put(weights + j / FOURS * PLACE, j % FOURS, value);
            }
            __syncthreads();
            if (!busy) continue;
            const f32* here = weights + Kit::lane_offset();
            const f32* gradients = dyp + from + k;
            const u8* cells = index + from + k;
#pragma unroll 1
            for (int f = 0; f < FILTERS; f += 2) {
                const float2 two = next;
                const u32 one_cell = next_cells[0], other_cell = next_cells[1];
                const int after = k + f + 2 < P::K ? f + 2 : 0;  // on their way meanwhile
                next = *reinterpret_cast<const float2*>(gradients + after);
                next_cells[0] = cells[after], next_cells[1] = cells[after + 1];
                add_patch<P>(patch, here, two.x, one_cell);
                add_patch<P>(patch, here + 9 * PLACE, two.y, other_cell);
                here += 18 * PLACE;
            }
        }
        for (int turn = 0; turn < 4; ++turn) {
            __syncthreads();
            if (!busy || number != turn) continue;
            const i32 first_row = 2 * row - i32(P::PH) - top, first_col = 2 * col - i32(P::PW);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const i32 h = first_row + r;
                if (h < 0 || h >= height) continue;
                f32* to = tile + (h * i32(P::W) + first_col) * Kit::CHANNELS + lane % 4 * 4;
                float4 old[4];  // all are read before any is written
                bool inside[4];
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    inside[s] = first_col + s >= 0 && first_col + s < P::W;
                    if (inside[s]) old[s] = four_at(to + s * Kit::CHANNELS);
                }
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    if (inside[s])
                        *reinterpret_cast<float4*>(to + s * Kit::CHANNELS) =
                            make_float4(old[s].x + patch[r][s][0], old[s].y + patch[r][s][1],
                                        old[s].z + patch[r][s][2], old[s].w + patch[r][s][3]);
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < height * P::W * FOURS; i += blockDim.x) {
        const i32 pixel = i / FOURS, row = top + pixel / i32(P::W), col = pixel % i32(P::W);
        if (row < 0 || row >= P::H) continue;
        const i64 to = Conv<P>::x_offset(image, channels + i % FOURS * 4, row, col);
        float4 value = reinterpret_cast<const float4*>(tile)[i];
        if constexpr (P::MASK != 0) {
            const float4 kept = four_at(a + to);
            value = make_float4(masked(value.x, kept.x), masked(value.y, kept.y),
                                masked(value.z, kept.z), masked(value.w, kept.w));
        }
        store_float4(dx + to, value);
    }
}
