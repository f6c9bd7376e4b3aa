// dw[o,i] = sum over n of dy[n,o] * x[n,i]; with P::BIAS also db[o] = sum over n of dy[n,o].
//
// Arguments: x (N,I), dy (N,O), dw (O,I), [db (O)], N. An item owns OB x IW elements of dw and
// sums over all samples, so no partial sums are kept anywhere. Vectors run along i: NC samples at
// a time are copied to scratch as strips two vectors wide, and a register tile of TO outputs x 2
// vectors adds dy * strip. Scratch: NC * IW floats.
// Limit: FMA-bound from about 16 samples; below, writing dw.
#include "strips.h"

namespace convloom {

template <class P, int TO>
static void wgrad_tile(const f32* dy, const f32* strip, f32* dw, long rows, long left,
                       bool first) {
    vec acc[TO][2];
    CL_UNROLL for (int o = 0; o < TO; ++o) {
        acc[o][0] = first ? zero() : load_tail(dw + o * P::I, left);
        acc[o][1] = first ? zero() : load_tail(dw + o * P::I + LANES, left - LANES);
    }
    for (long n = 0; n < rows; ++n) {
        const vec x0 = load_aligned(strip + n * STRIP);
        const vec x1 = load_aligned(strip + n * STRIP + LANES);
        CL_UNROLL for (int o = 0; o < TO; ++o) {
            const vec g = broadcast(dy[n * P::O + o]);
            acc[o][0] = fma(g, x0, acc[o][0]);
            acc[o][1] = fma(g, x1, acc[o][1]);
        }
    }
    CL_UNROLL for (int o = 0; o < TO; ++o) {
        store_tail(dw + o * P::I, acc[o][0], left);
        store_tail(dw + o * P::I + LANES, acc[o][1], left - LANES);
    }
}

template <class P>
static void wgrad_bias(const f32* dy, f32* db, long o0, long o1, long N) {
    for (long o = o0; o < o1; o += LANES) {
        vec sum = zero();
        for (long n = 0; n < N; ++n) sum += load_tail(dy + n * P::O + o, o1 - o);
        store_tail(db + o, sum, o1 - o);
    }
}

template <class P>
void linear_wgrad(const Arg* args, long item, Worker* worker) {
    const f32* x = static_cast<const f32*>(args[0].address);
    const f32* dy = static_cast<const f32*>(args[1].address);
    f32* dw = static_cast<f32*>(args[2].address);
    const long N = args[3 + P::BIAS].integer;
    f32* strips = reinterpret_cast<f32*>(worker->scratch);
    constexpr long panels = ceil_div(P::I, P::IW);
    constexpr int TO = VECTOR_REGISTERS >= 32 ? P::TO : (P::TO + 1) / 2;
    const long i0 = item % panels * P::IW, width = min(P::IW, P::I - i0);
    const long o0 = item / panels * P::OB, o1 = min(o0 + P::OB, P::O);
    if constexpr (P::BIAS != 0)
        if (i0 == 0) wgrad_bias<P>(dy, static_cast<f32*>(args[3].address), o0, o1, N);
    for (long n = 0; n == 0 || n < N; n += P::NC) {
        const long rows = min(P::NC, N - n);
        pack_strips<P::I>(x + n * P::I, i0, width, rows, strips);
        for (long s = 0; s < width; s += STRIP) {
            const f32* strip = strips + s * rows;
            const long i = i0 + s, left = P::I - i;
            long o = o0;
            for (; o + TO <= o1; o += TO)
                wgrad_tile<P, TO>(dy + n * P::O + o, strip, dw + o * P::I + i, rows, left, n == 0);
            if constexpr (P::O % TO != 0)
                if (o < o1)
                    wgrad_tile<P, P::O % TO>(dy + n * P::O + o, strip, dw + o * P::I + i, rows,
                                             left, n == 0);
        }
    }
}

}  // namespace convloom
