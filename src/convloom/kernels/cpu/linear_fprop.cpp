// y[n,o] = sum over i of x[n,i] * w[o,i] (+ b[o]), then the activation P::ACT.
//
// Arguments: x (N,I), w (O,I), [b (O)], y (N,O), N. An item is OB outputs of NB samples. Vectors
// run along i; a register tile holds TN x TO sums, each LANES wide, whose lanes are added once at
// the end of a block of KC inputs. All tiles of an item pass a block before the next is begun.
// Limit: 2 loads (one of x, one of w) feed about 2 multiply-adds; FMA-bound where N is a few tiles.
#include "activation.h"
#include "lanes.h"

namespace convloom {

constexpr int FPROP_TN = VECTOR_REGISTERS >= 32 ? 4 : 2;
// At most this many inputs a block: longer ones mean fewer sums over lanes, but 64 samples' part
// of a block should stay near the second-level cache.
constexpr long FPROP_KC = 4608;

// y (+)= the tile's sums over inputs [k, stop); the last block adds bias and activation.
template <class P, int TN, int TO>
static void fprop_tile(const f32* x, const f32* w, const f32* b, f32* y, long k, long stop) {
    constexpr int SUMS = round_up(TN * TO, LANES);
    vec acc[SUMS];
    CL_UNROLL for (int i = 0; i < SUMS; ++i) acc[i] = zero();
    const bool first = k == 0, last = stop == P::I;
    const auto step = [&](auto fetch) __attribute__((always_inline)) {
        vec xv[TN];
        CL_UNROLL for (int n = 0; n < TN; ++n) xv[n] = fetch(x + n * P::I + k);
        CL_UNROLL for (int o = 0; o < TO; ++o) {
            const vec wv = fetch(w + o * P::I + k);
            CL_UNROLL for (int n = 0; n < TN; ++n)
                acc[n * TO + o] = fma(xv[n], wv, acc[n * TO + o]);
        }
    };
    for (; k + LANES <= stop; k += LANES) step([](const f32* p) { return load(p); });
    if (k < stop) step([&](const f32* p) { return load_partial(p, stop - k); });
    f32 sums[SUMS];
    CL_UNROLL for (int g = 0; g < SUMS; g += LANES) store(sums + g, lane_sums(acc + g));
    CL_UNROLL for (int n = 0; n < TN; ++n) {
        CL_UNROLL for (int o = 0; o < TO; ++o) {
            f32 sum = sums[n * TO + o];
            f32* out = y + n * P::O + o;
            if (!first) sum += *out;
            if constexpr (P::BIAS != 0) sum = last ? sum + b[o] : sum;
            if constexpr (P::ACT == RELU) sum = last && sum <= 0 ? 0.0f : sum;
            if constexpr (P::ACT > RELU) sum = last ? activated<P>(broadcast(sum))[0] : sum;
            *out = sum;
        }
    }
}

// All samples [n, end) against TO outputs.
template <class P, int TO>
static void fprop_column(const f32* x, const f32* w, const f32* b, f32* y, long n, long end,
                         long k, long stop) {
    constexpr int TN = FPROP_TN;
    for (; n + TN <= end; n += TN)
        fprop_tile<P, TN, TO>(x + n * P::I, w, b, y + n * P::O, k, stop);
    if constexpr (TN > 2)
        for (; n + 2 <= end; n += 2)
            fprop_tile<P, 2, TO>(x + n * P::I, w, b, y + n * P::O, k, stop);
    for (; n < end; ++n) fprop_tile<P, 1, TO>(x + n * P::I, w, b, y + n * P::O, k, stop);
}

template <class P>
void linear_fprop(const Arg* args, long item, Worker*) {
    const f32* x = static_cast<const f32*>(args[0].address);
    const f32* w = static_cast<const f32*>(args[1].address);
    const f32* b = P::BIAS ? static_cast<const f32*>(args[2].address) : nullptr;
    f32* y = static_cast<f32*>(args[2 + P::BIAS].address);
    const long N = args[3 + P::BIAS].integer;
    constexpr long oblocks = ceil_div(P::O, P::OB);
    const long o0 = item % oblocks * P::OB, o1 = min(o0 + P::OB, P::O);
    const long n0 = item / oblocks * P::NB, n1 = min(n0 + P::NB, N);
    constexpr long KC = round_up(ceil_div(P::I, ceil_div(P::I, FPROP_KC)), LANES);
    for (long k = 0; k < P::I; k += KC) {
        const long stop = min(k + KC, P::I);
        long o = o0;
        for (; o + P::TO <= o1; o += P::TO)
            fprop_column<P, P::TO>(x, w + o * P::I, b + o, y + o, n0, n1, k, stop);
        if constexpr (P::O % P::TO != 0)
            if (o < o1)
                fprop_column<P, P::O % P::TO>(x, w + o * P::I, b + o, y + o, n0, n1, k, stop);
    }
}

}  // namespace convloom
