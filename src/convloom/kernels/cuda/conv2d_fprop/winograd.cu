// Convolution 3x3 of stride 1, bias, activation (ACT) and 2x2 max-pooling of stride 2 (POOL) by
// minimal filtering (device/winograd.cuh says how).
//
// A block of 256 threads makes FILTERS filters of `each` groups of windows, 1024 / FILTERS a group;
// a pool's window is exactly one of these. Filters come transformed, from winograd_filters/naive;
// they stay in shared memory while a block works, if they fit.
// Against sliding: 16 multiply-adds for 36, and 32 additions a channel of a patch, 24 a filter of a
// window.
// Limit: 8*C FLOPs an output; a load of 16 bytes from shared memory feeds 16 multiply-adds.
#include "device/conv.cuh"
#include "device/pooled.cuh"
#include "device/winograd.cuh"

template <class P>
struct WinogradForward {
    // Windows that take part: with POOL those that do not overhang, else all that have an output.
    static constexpr i64 ROWS = P::POOL != 0 ? P::OH / 2 : ceil_div(P::OH, 2);
    static constexpr i64 COLS = P::POOL != 0 ? P::OW / 2 : ceil_div(P::OW, 2);
    using Window = WindowPlace<ROWS, COLS>;
    using Kit = Winograd<P::C, P::FILTERS>;
    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::R == 3 && P::S == 3 && P::K % P::FILTERS == 0);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);

    using Source = WinogradPatches<Window, P::H, P::W, P::C, P::PH, P::PW>;

    struct Sink {
        using Before = float2;  // the filters' bias
        static constexpr bool BIAS = P::BIAS != 0;
        const f32 *x, *w, *added;
        f32* y;
        u8* index;
        i64 first;  // the block's first filter

        __device__ __forceinline__ Before before(u32, u32 filter) const {
            return BIAS ? *reinterpret_cast<const float2*>(added + first + filter)
                        : make_float2(0.0f, 0.0f);
        }
        __device__ __forceinline__ float2 bias(const Before& before) const { return before; }
        __device__ __forceinline__ void write(u32 window, u32 filter,
                                              const f32 (&value)[2][4], const Before&) const {
            if constexpr (P::POOL != 0) {
                const i64 at = window * P::K + first + filter;  // they lie as they are numbered
                f32 best[2];
                u32 winner[2];
#pragma unroll
                for (int v = 0; v < 2; ++v)
                    best[v] = pooled<P, true>([&](int i) { return value[v][i]; }, winner[v]);
                *reinterpret_cast<float2*>(y + at) = make_float2(best[0], best[1]);
                *reinterpret_cast<u16*>(index + at) = u16(winner[0] | winner[1] << 8);
            } else {
                const Window at = Window::of(window);
                f32* to = y + Conv<P>::y_offset(at.image, first + filter, 2 * at.row, 2 * at.col);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (P::OH % 2 != 0 && 2 * at.row + i / 2 >= P::OH) continue;
                    if (P::OW % 2 != 0 && 2 * at.col + i % 2 >= P::OW) continue;
                    *reinterpret_cast<float2*>(to + (i / 2 * P::OW + i % 2) * P::K) =
                        make_float2(activated<P>(value[0][i]), activated<P>(value[1][i]));
                }
            }
        }
        // An output before its activation. Loops stay loops: they need few registers.
        __device__ f32 cell(i64 image, i64 filter, i32 row, i32 col) const {
            f32 sum = 0.0f;
#pragma unroll 1
            for (i32 tap = 0; tap < 9; ++tap)
#pragma unroll 4
                for (i32 c = 0; c < P::C; ++c)
                    sum = fmaf(Conv<P>::padded(x, image, c, row + tap / 3 - P::PH,
                                               col + tap % 3 - P::PW),
                               w[(filter * 9 + tap) * P::C + c], sum);
            return P::BIAS != 0 ? sum + added[filter] : sum;
        }
        __device__ void again(u32 window, u32 filter) const {
            const Window at = Window::of(window);
#pragma unroll 1
            for (i64 k = first + filter; k < first + filter + 2; ++k) {
                f32 best = 0.0f;
                u32 winner = 0;
#pragma unroll 1
                for (i32 i = 0; i < 4; ++i) {
                    const i32 row = 2 * at.row + i / 2, col = 2 * at.col + i % 2;
                    if (row >= P::OH || col >= P::OW) continue;
                    const f32 value = activated<P>(cell(at.image, k, row, col));
                    if (P::POOL == 0)
                        y[Conv<P>::y_offset(at.image, k, row, col)] = value;
                    else if (i == 0 || replaces(value, best))
                        best = value, winner = i;
                }
                if constexpr (P::POOL != 0) y[window * P::K + k] = best;
                if constexpr (P::POOL != 0) index[window * P::K + k] = u8(winner);
            }
        }
    };
};

template <class P>
__global__ void __launch_bounds__(WinogradForward<P>::Kit::BLOCK, CONVLOOM_WINOGRAD_BLOCKS)
    conv2d_fprop_winograd(const f32* x, const f32* w, const f32* u, const f32* bias, f32* y,
                          u8* index, i64 each, i64 n) {
    using Forward = WinogradForward<P>;
    using Kit = typename Forward::Kit;
    const typename Kit::Share share(P::K, each, n * (Forward::ROWS * Forward::COLS));
    const typename Forward::Sink sink{x, w, bias, y, index, share.filter};
    Kit::run(typename Forward::Source{x}, sink, u, share);
}
