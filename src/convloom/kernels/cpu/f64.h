// Vectors of float64, half as many lanes, for sums that must not lose small terms.
#pragma once

#include "simd.h"

namespace convloom {

constexpr int HALF = LANES / 2;
typedef float half_unaligned __attribute__((vector_size(2 * CL_LANES), aligned(4), may_alias));
typedef double dvec __attribute__((vector_size(4 * CL_LANES)));

// HALF floats as float64.
CL_INLINE dvec widen(const f32* p) {
    return __builtin_convertvector(*(const half_unaligned*)p, dvec);
}

CL_INLINE f64 horizontal_sum(dvec v) {
    f64 total = 0;
    for (int l = 0; l < HALF; ++l) total += v[l];
    return total;
}

}  // namespace convloom
