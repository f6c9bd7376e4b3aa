// Local response normalisation: the arithmetic of one vector, shared by windows of every kind.
//
// With the sum of squares s over a window: d = k + scale s, y = x d^-beta, and for the gradient
// p = d^-beta and t = dy x p / d.
#pragma once

#include "functions.h"

namespace convloom {

struct Response {
    vec k, scale, minus_beta;

    // From three consecutive arguments: k, scale = alpha / cells, beta.
    explicit Response(const Arg* args)
        : k(broadcast(f32(args[0].real))),
          scale(broadcast(f32(args[1].real))),
          minus_beta(broadcast(f32(-args[2].real))) {}

    vec denominator(vec sum) const { return fma(scale, sum, k); }
    vec factor(vec d) const { return exponential(minus_beta * natural_log(d)); }
};

}  // namespace convloom
