// Gradient of the input of a 3x3 convolution of stride 1, behind the activation that made that
// input a (MASK), by minimal filtering (device/winograd.cuh says how). Where 2x2 pooling of stride 2
// followed (POOL), dy is the gradient of the pooled map, and `index` says which cell of its window
// each belongs to.
//
// It is itself a convolution: of dy, padded by 2 less the padding, with filters turned by 180
// degrees. A block of 256 threads makes FILTERS channels of `each` groups of windows of 2x2 inputs,
// 1024 / FILTERS a group. Pooled gradients are spread to the cells of their windows in registers;
// the next filters' are on their way while products are made.
// Against sliding: 16 multiply-adds for 36, and 32 additions a filter of a patch, of pooled
// gradients 24 selections more, 24 additions a channel of a window.
// Limit: 8*K FLOPs an input; a load of 16 bytes from shared memory feeds 16 multiply-adds.
#include "device/activation.cuh"
#include "device/conv.cuh"
#include "device/winograd.cuh"

// Patches of the gradients of a pooled map, spread to the cells that won.
template <class P, class Window>
struct PooledPatches {
    static constexpr bool SMALL = true;
    // A patch begins with a window's first row or, with odd padding, with its second, and so do
    // columns; it meets so many windows.
    static constexpr int ROW = int(P::PH % 2), COL = int(P::PW % 2);
    static constexpr int DOWN = 2 + ROW, ACROSS = 2 + COL;
    static constexpr i32 TOP = 1 - i32(P::PH) / 2, LEFT = 1 - i32(P::PW) / 2;
    static constexpr i64 ROWS = Conv<P>::POOL_ROWS, COLS = Conv<P>::POOL_COLS;
    const f32* dyp;
    const u8* index;

    struct Raw {
        float2 value[DOWN][ACROSS];
        u32 cells[DOWN][ACROSS];  // one a byte
    };
    struct Place {
        const f32* values;  // of the first window, which may be outside
        const u8* cells;
        u32 inside;  // a bit for each window that is not

        __device__ __forceinline__ void move(int filters) { values += filters, cells += filters; }
    };
    __device__ __forceinline__ Place place(u32 window, u32 filter) const {
        const Window at = Window::of(window);
        const i32 row = at.row - TOP, col = at.col - LEFT;
        const i64 from = at.image * Conv<P>::POOLED_SIZE + (row * i32(COLS) + col) * P::K + filter;
        u32 inside = 0;
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
                if (u32(row + i) < u32(ROWS) && u32(col + j) < u32(COLS))
                    inside |= 1 << (i * ACROSS + j);
        return {dyp + from, index + from, inside};
    }
    __device__ __forceinline__ void load(Raw& raw, const Place& at, bool there) const {
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) {
                const bool inside = there && at.inside >> (i * ACROSS + j) & 1;
                const i64 step = (i * COLS + j) * P::K;
                raw.value[i][j] = inside ? *reinterpret_cast<const float2*>(at.values + step)
                                         : make_float2(0.0f, 0.0f);
                raw.cells[i][j] = inside ? *reinterpret_cast<const u16*>(at.cells + step) : 0;
            }
    }
    __device__ __forceinline__ WinogradPatch expand(const Raw& raw) const {
        WinogradPatch patch;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int down = (i + ROW) / 2, across = (j + COL) / 2;
                const int cell = (i + ROW) % 2 * 2 + (j + COL) % 2;
                const float2 value = raw.value[down][across];
                const u32 cells = raw.cells[down][across];
                patch.at[i][j].x = own(cells, cell, value.x);
                patch.at[i][j].y = own(cells >> 8, cell, value.y);
            }
        return patch;
    }
    // The gradient of a cell, that of its window if it won.
    __device__ __forceinline__ static f32 own(u32 winner, int cell, f32 value) {
        const f32 row = choose(i32(winner & 2), cell / 2 == 1 ? value : 0.0f,
                               cell / 2 == 1 ? 0.0f : value);
        return choose(i32(winner & 1), cell % 2 == 1 ? row : 0.0f, cell % 2 == 1 ? 0.0f : row);
    }
};

template <class P>
struct WinogradGradient {
    static constexpr i64 ROWS = ceil_div(P::H, 2), COLS = ceil_div(P::W, 2);
    using Window = WindowPlace<ROWS, COLS>;
    using Kit = Winograd<P::K, P::FILTERS>;
    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::R == 3 && P::S == 3 && P::C % P::FILTERS == 0 && P::PH <= 2 && P::PW <= 2);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);

    struct Sink {
        static constexpr bool BIAS = false;
        const f32 *dy, *w, *a;
        const u8* index;
        f32* dx;
        i64 first;  // the block's first channel

        struct Before {
            float2 a[4];
        };
        // Calls visit(cell, offset in a and dx) for the cells of a window that are there.
        template <class Visit>
        __device__ __forceinline__ void cells(u32 window, u32 channel, const Visit& visit) const {
            const Window at = Window::of(window);
            const i64 from =
                Conv<P>::x_offset(at.image, first + channel, 2 * at.row, 2 * at.col);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (P::H % 2 != 0 && 2 * at.row + i / 2 >= P::H) continue;
                if (P::W % 2 != 0 && 2 * at.col + i % 2 >= P::W) continue;
                visit(i, from + (i / 2 * P::W + i % 2) * P::C);
            }
        }
        __device__ __forceinline__ Before before(u32 window, u32 channel) const {
            Before before = {};
            if constexpr (P::MASK != 0)
                cells(window, channel, [&](int i, i64 at) {
                    before.a[i] = *reinterpret_cast<const float2*>(a + at);
                });
            return before;
        }
        __device__ __forceinline__ float2 bias(const Before&) const { return {}; }
        __device__ __forceinline__ void write(u32 window, u32 channel, const f32 (&value)[2][4],
                                              const Before& before) const {
            cells(window, channel, [&](int i, i64 at) {
                const float2 kept = before.a[i];
                *reinterpret_cast<float2*>(dx + at) =
                    P::MASK != 0
                        ? make_float2(gated<P>(value[0][i], kept.x), gated<P>(value[1][i], kept.y))
                        : make_float2(value[0][i], value[1][i]);
            });
        }
        // The gradient of an input. Loops stay loops: they need few registers.
        template <class Dy>
        __device__ f32 input(const Dy& dy, i64 image, i64 channel, i32 row, i32 col) const {
            f32 sum = 0.0f;
#pragma unroll 1
            for (i32 tap = 0; tap < 9; ++tap) {
                const i32 p = row + i32(P::PH) - tap / 3, q = col + i32(P::PW) - tap % 3;
                if (p < 0 || p >= P::OH || q < 0 || q >= P::OW) continue;
#pragma unroll 4
                for (i32 k = 0; k < P::K; ++k)
                    sum = fmaf(dy(image, k, p, q), w[(k * 9 + tap) * P::C + channel], sum);
            }
            return sum;
        }
        __device__ void again(u32 window, u32 channel) const {
            const Window at = Window::of(window);
#pragma unroll 1
            for (i32 i = 0; i < 8; ++i) {
                const i32 row = 2 * at.row + i / 2 % 2, col = 2 * at.col + i % 2;
                const i64 c = first + channel + i / 4;
                if (row >= P::H || col >= P::W) continue;
                f32 value;
                if constexpr (P::POOL != 0)
                    value = input(PooledGradient<P>{dy, index}, at.image, c, row, col);
                else
                    value = input(DenseGradient<P>{dy}, at.image, c, row, col);
                const i64 to = Conv<P>::x_offset(at.image, c, row, col);
                dx[to] = P::MASK != 0 ? gated<P>(value, a[to]) : value;
            }
        }
    };
};

template <class P>
__global__ void __launch_bounds__(WinogradGradient<P>::Kit::BLOCK, CONVLOOM_WINOGRAD_BLOCKS)
    conv2d_dgrad_winograd(const f32* dy, const f32* w, const f32* u, const u8* index, const f32* a,
                          f32* dx, i64 each, i64 n) {
    using Gradient = WinogradGradient<P>;
    using Kit = typename Gradient::Kit;
    using Window = typename Gradient::Window;
    const typename Kit::Share share(P::C, each, n * (Gradient::ROWS * Gradient::COLS));
    const typename Gradient::Sink sink{dy, w, a, index, dx, share.filter};
    if constexpr (P::POOL != 0)
        Kit::run(PooledPatches<P, Window>{dy, index}, sink, u, share);
    else
        Kit::run(WinogradPatches<Window, P::OH, P::OW, P::K, 2 - P::PH, 2 - P::PW>{dy}, sink, u,
                 share);
}
