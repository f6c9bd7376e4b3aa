// Sums over the lanes of many vectors at once: LANES vectors become one vector of their sums.
//
// Each level adds neighbours at distance D = 1, 2, 4, … and keeps, of two vectors, the lanes that
// belong to each; LANES - 1 such steps, about three instructions a vector.
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

// Lane l: a[l] + a[l ^ D] where l has bit D clear, else b[l] + b[l ^ D].
template <int D, int... L>
CL_INLINE vec add_neighbours(vec a, vec b, LaneList<L...>) {
    const vec own = __builtin_shufflevector(a, b, (L & D ? L + LANES : L)...);
    const vec other = __builtin_shufflevector(a, b, (L & D ? (L ^ D) + LANES : (L ^ D))...);
    return own + other;
}

template <int D = 1>
CL_INLINE vec lane_sums(vec* v) {
    using All = typename MakeLanes<LANES>::type;
    constexpr int pairs = LANES / D / 2;
    CL_UNROLL for (int i = 0; i < pairs; ++i)
        v[i] = add_neighbours<D>(v[2 * i], v[2 * i + 1], All{});
    if constexpr (pairs == 1)
        return v[0];
    else
        return lane_sums<2 * D>(v);
}

}  // namespace convloom
