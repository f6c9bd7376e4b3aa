// dx[n,i] = sum over o of dy[n,o] * w[o,i], behind the activation P::MASK that made a.
//
// Arguments: dy (N,O), w (O,I), [a (N,I)], dx (N,I), N. An item is IW inputs (a multiple of 2
// vectors) of all samples. Vectors run along i: OC rows of w at a time are copied to scratch as
// strips two vectors wide, so that the strip is contiguous whatever I is, and a register tile of
// TN samples x 2 vectors adds dy * strip, one broadcast and two vectors for 2 TN multiply-adds.
// Scratch: OC * IW floats. Limit: FMA-bound from about 8 samples; below, reading w.
#include "activation.h"
#include "strips.h"

namespace convloom {

constexpr int DGRAD_TN = VECTOR_REGISTERS >= 32 ? 8 : 6;
template <class P, int TN>
static void dgrad_tile(const f32* dy, const f32* strip, const f32* a, f32* dx, long rows,
                       long left, bool first, bool last) {
    vec acc[TN][2];
    CL_UNROLL for (int n = 0; n < TN; ++n) {
        acc[n][0] = first ? zero() : load_tail(dx + n * P::I, left);
        acc[n][1] = first ? zero() : load_tail(dx + n * P::I + LANES, left - LANES);
    }
    for (long o = 0; o < rows; ++o) {
        const vec w0 = load_aligned(strip + o * STRIP);
        const vec w1 = load_aligned(strip + o * STRIP + LANES);
        CL_UNROLL for (int n = 0; n < TN; ++n) {
            const vec g = broadcast(dy[n * P::O + o]);
            acc[n][0] = fma(g, w0, acc[n][0]);
            acc[n][1] = fma(g, w1, acc[n][1]);
        }
    }
    CL_UNROLL for (int n = 0; n < TN; ++n) {
        CL_UNROLL for (int h = 0; h < 2; ++h) {
            const long at = n * P::I + h * LANES, room = left - h * LANES;
            vec value = acc[n][h];
            if constexpr (P::MASK != 0)
                if (last) value = masked<P>(load_tail(a + at, room), value);
            store_tail(dx + at, value, room);
        }
    }
}

template <class P>
void linear_dgrad(const Arg* args, long item, Worker* worker) {
    const f32* dy = static_cast<const f32*>(args[0].address);
    const f32* w = static_cast<const f32*>(args[1].address);
    const f32* a = P::MASK ? static_cast<const f32*>(args[2].address) : nullptr;
    f32* dx = static_cast<f32*>(args[2 + (P::MASK != 0)].address);
    const long N = args[3 + (P::MASK != 0)].integer;
    f32* strips = reinterpret_cast<f32*>(worker->scratch);
    const long i0 = item * P::IW, width = min(P::IW, P::I - i0);
    for (long o = 0; o < P::O; o += P::OC) {
        const long rows = min(P::OC, P::O - o);
        pack_strips<P::I>(w + o * P::I, i0, width, rows, strips);
        const bool first = o == 0, last = o + rows == P::O;
        for (long s = 0; s < width; s += STRIP) {
            const f32* strip = strips + s * rows;
            const long i = i0 + s, left = P::I - i;
            long n = 0;
            const auto tiles = [&](auto size) __attribute__((always_inline)) {
                constexpr int TN = decltype(size)::value;
                for (; n + TN <= N; n += TN)
                    dgrad_tile<P, TN>(dy + n * P::O + o, strip, a + n * P::I + i,
                                      dx + n * P::I + i, rows, left, first, last);
            };
            tiles(Size<DGRAD_TN>{});
            tiles(Size<4>{});
            tiles(Size<2>{});
            tiles(Size<1>{});
        }
    }
}

}  // namespace convloom
