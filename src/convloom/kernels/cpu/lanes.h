// Work across lanes: sums over the lanes of LANES vectors at once, and LANES x LANES transposes.
//
// Both go level by level, exchanging lanes at distance D = 1, 2, 4, … between pairs of vectors:
// three instructions a vector for the sums, two a vector and level for a transpose.
#pragma once

#include "simd.h"

namespace convloom {

template <int...>
struct LaneList {};
template <int N, int... I>
struct MakeLanes : MakeLanes<N - 1, N - 1, I...> {};
template <int... I>
struct MakeLanes<0, I...> {
    using type = LaneList<I...>;
};

// Lane l: lane I[l] of a and b joined. g++ has clang's builtin from version 12 on.
template <int... I>
CL_INLINE vec shuffle(vec a, vec b) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, I...);
#else
    return __builtin_shuffle(a, b, ivec{I...});
#endif
}

// Lane l: a[l] where l has bit D clear, else b[l].
template <int D, int... L>
CL_INLINE vec keep_lanes(vec a, vec b, LaneList<L...>) {
    return shuffle<(L & D ? L + LANES : L)...>(a, b);
}

// Lane l: a[l ^ D] where l has bit D clear, else b[l ^ D].
template <int D, int... L>
CL_INLINE vec swap_lanes(vec a, vec b, LaneList<L...>) {
    return shuffle<(L & D ? (L ^ D) + LANES : (L ^ D))...>(a, b);
}

// Lane l: a[l] where l has bit D clear, else b[l ^ D].
template <int D, int... L>
CL_INLINE vec first_half(vec a, vec b, LaneList<L...>) {
    return shuffle<(L & D ? (L ^ D) + LANES : L)...>(a, b);
}

// Lane l: a[l ^ D] where l has bit D clear, else b[l].
template <int D, int... L>
CL_INLINE vec second_half(vec a, vec b, LaneList<L...>) {
    return shuffle<(L & D ? L + LANES : (L ^ D))...>(a, b);
}

// One vector of the sums over all lanes of v[0], v[1], …; v is used up.
template <int D = 1>
CL_INLINE vec lane_sums(vec* v) {
    using All = typename MakeLanes<LANES>::type;
    constexpr int pairs = LANES / D / 2;
    CL_UNROLL for (int i = 0; i < pairs; ++i)
        v[i] = keep_lanes<D>(v[2 * i], v[2 * i + 1], All{}) +
               swap_lanes<D>(v[2 * i], v[2 * i + 1], All{});
    if constexpr (pairs == 1)
        return v[0];
    else
        return lane_sums<2 * D>(v);
}

// Lane j of v[i] becomes lane i of v[j].
template <int D = 1>
CL_INLINE void transpose_lanes(vec* v) {
    using All = typename MakeLanes<LANES>::type;
    CL_UNROLL for (int i = 0; i < LANES; ++i) {
        if (i & D) continue;
        const vec a = v[i], b = v[i + D];
        v[i] = first_half<D>(a, b, All{});
        v[i + D] = second_half<D>(a, b, All{});
    }
    if constexpr (2 * D < LANES) transpose_lanes<2 * D>(v);
}

}  // namespace convloom
