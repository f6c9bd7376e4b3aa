// Filters of a 3x3 convolution in the Winograd domain: U = G g G^T for every (filter, channel).
//
// Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016
// (arXiv 1509.09308), F(2x2, 3x3). The factors are 1, 1/2 and 1/4, so small integers stay exact.
//
// Arguments: w (KRSC of the forward convolution), u, plain.
// Constants: C and K as this convolution reads and writes them, NV vectors a block of filters,
//     DGRAD: for an input gradient the roles of the axes change and the taps are reversed.
// u is [16][K/(NV*LANES)][C][NV*LANES]; plain is [3][3][C][K], for the direct form that takes over
// where values are not finite. An item makes 16 filters. Limit: memory, 4*(9+16+9)*C*K bytes.
#include "simd.h"

namespace convloom {

// Rows of G (4x3) times three vectors.
CL_INLINE void winograd_filter_rows(const vec* g, vec* t) {
    const vec half = broadcast(0.5f);
    const vec outer = (g[0] + g[2]) * half;
    t[0] = g[0];
    t[1] = outer + g[1] * half;
    t[2] = outer - g[1] * half;
    t[3] = g[2];
}

// A square of 16 filters and 16 channels, copied out first: far apart in w, neighbours in the cache.
template <class P>
struct WinogradSquare {
    f32 w[9][16][16];  // forward: [tap][filter][channel]

    void fetch(const f32* from, i64 first, i64 c) {
        for (int tap = 0; tap < 9; tap++)
            for (int k = 0; k < 16; k++)
                copy(w[tap][k], from + ((first + k) * 9 + tap) * P::C + c, 16);
    }
    vec filters(int tap, int c, int k) const {
        f32 lanes[LANES];
        for (int i = 0; i < LANES; i++) lanes[i] = w[tap][k + i][c];
        return load(lanes);
    }
};

// One channel and LANES filters, given their nine taps.
template <class P>
void winograd_pack_taps(const vec g[3][3], f32* u, f32* plain, i64 c, i64 first) {
    constexpr i64 WIDTH = P::NV * LANES;
    const i64 block = first / WIDTH, within = first % WIDTH;
    vec rows[4][3], column[3], t[4];
    for (int s = 0; s < 3; s++) {
        for (int r = 0; r < 3; r++) {
            store(plain + ((r * 3 + s) * P::C + c) * P::K + first, g[r][s]);
            column[r] = g[r][s];
        }
        winograd_filter_rows(column, t);
        for (int i = 0; i < 4; i++) rows[i][s] = t[i];
    }
    for (int i = 0; i < 4; i++) {
        winograd_filter_rows(rows[i], t);
        for (int j = 0; j < 4; j++)
            store(u + (((i * 4 + j) * (P::K / WIDTH) + block) * P::C + c) * WIDTH + within, t[j]);
    }
}

template <class P>
void winograd_pack(const Arg* args, long item, Worker*) {
    const f32* w = static_cast<const f32*>(args[0].address);
    f32* u = static_cast<f32*>(args[1].address);
    f32* plain = static_cast<f32*>(args[2].address);
    const i64 first = item * 16;
    WinogradSquare<P> square;
    for (i64 c0 = 0; c0 < P::C; c0 += 16) {
        if (!P::DGRAD) square.fetch(w, first, c0);
        for (int c = 0; c < 16; c++)
            for (i64 k = 0; k < 16; k += LANES) {
                vec g[3][3];
                for (int r = 0; r < 3; r++)
                    for (int s = 0; s < 3; s++)
                        g[r][s] = P::DGRAD ? load(w + (((c0 + c) * 3 + 2 - r) * 3 + 2 - s) * P::K +
                                                  first + k)
                                           : square.filters(r * 3 + s, c, k);
                winograd_pack_taps<P>(g, u, plain, c0 + c, first + k);
            }
    }
}

}  // namespace convloom
