// Filters in the Winograd domain: U = G g G^T for every (filter, channel), and for every 3x3 piece of
// a larger filter, with zeros where a piece reaches beyond it.
//
// Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016
// (arXiv 1509.09308), F(2x2, 3x3). The factors are 1, 1/2 and 1/4, so small integers stay exact.
//
// Arguments: w (KRSC of the forward convolution), u, plain.
// Constants: C and K of each of G groups, as this convolution reads and writes them; R, S; NV vectors
//     a block of filters; DGRAD: for an input gradient the roles of the axes change and the taps are
//     reversed.
// u is [G][16][K/(NV*LANES)][E][NV*LANES] with E the channels of all pieces; plain is [G][9][E][K],
// for the direct form that takes over where values are not finite. An item makes 16 filters.
// Limit: memory, 4*(9+16+9)*E*K bytes a group.
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

// A square of 16 filters and 16 channels of one piece of the filters, copied out first: far apart in
// w, neighbours in the cache.
template <class P>
struct WinogradSquare {
    f32 w[9][16][16];  // forward: [tap][filter][channel]; input gradient: [tap][channel][filter]

    // The piece that starts at tap (top, left); ``first`` filter and ``c`` channel of the group.
    void fetch(const f32* from, i64 first, i64 c, i64 top, i64 left) {
        for (int tap = 0; tap < 9; tap++) {
            const i64 r = top + tap / 3, s = left + tap % 3;
            const bool there = r < P::R && s < P::S;
            for (i64 i = 0; i < 16; i++) {
                const f32* row = P::DGRAD ? from + (((c + i) * P::R + P::R - 1 - r) * P::S +
                                                    P::S - 1 - s) * P::K + first
                                          : from + (((first + i) * P::R + r) * P::S + s) * P::C + c;
                if (there)
                    copy(w[tap][i], row, 16);
                else
                    fill_zero(w[tap][i], 16);
            }
        }
    }
    vec filters(int tap, int c, i64 k) const {
        if (P::DGRAD) return load(w[tap][c] + k);
        f32 lanes[LANES];
        for (int i = 0; i < LANES; i++) lanes[i] = w[tap][k + i][c];
        return load(lanes);
    }
};

// One channel e of all pieces and LANES filters, given their nine taps.
template <class P, i64 E>
void winograd_pack_taps(const vec g[3][3], f32* u, f32* plain, i64 e, i64 first) {
    constexpr i64 WIDTH = P::NV * LANES;
    const i64 block = first / WIDTH, within = first % WIDTH;
    vec rows[4][3], column[3], t[4];
    for (int s = 0; s < 3; s++) {
        for (int r = 0; r < 3; r++) {
            store(plain + ((r * 3 + s) * E + e) * P::K + first, g[r][s]);
            column[r] = g[r][s];
        }
        winograd_filter_rows(column, t);
        for (int i = 0; i < 4; i++) rows[i][s] = t[i];
    }
    for (int i = 0; i < 4; i++) {
        winograd_filter_rows(rows[i], t);
        for (int j = 0; j < 4; j++)
            store(u + (((i * 4 + j) * (P::K / WIDTH) + block) * E + e) * WIDTH + within, t[j]);
    }
}

template <class P>
void winograd_pack(const Arg* args, long item, Worker*) {
    constexpr i64 A = ceil_div(P::R, 3), B = ceil_div(P::S, 3), E = A * B * P::C;
    const i64 group = item / (P::K / 16), first = item % (P::K / 16) * 16;
    const f32* w = static_cast<const f32*>(args[0].address) + group * P::C * P::K * P::R * P::S;
    f32* u = static_cast<f32*>(args[1].address) + group * 16 * E * P::K;
    f32* plain = static_cast<f32*>(args[2].address) + group * 9 * E * P::K;
    WinogradSquare<P> square;
    for (i64 piece = 0; piece < A * B; piece++)
        for (i64 c0 = 0; c0 < P::C; c0 += 16) {
            square.fetch(w, first, c0, piece / B * 3, piece % B * 3);
            for (int c = 0; c < 16; c++)
                for (i64 k = 0; k < 16; k += LANES) {
                    vec g[3][3];
                    for (int tap = 0; tap < 9; tap++)
                        g[tap / 3][tap % 3] = square.filters(tap, c, k);
                    winograd_pack_taps<P, E>(g, u, plain, piece * P::C + c0 + c, first + k);
                }
        }
}

}  // namespace convloom
