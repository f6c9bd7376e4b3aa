"""The update rule of cuda-convnet: the rate inside the velocity, rates of its own for every tensor.

    v = momentum v - eps g - eps decay w;  w = w + v;  then limits on each filter's size

Source: the 2012 code's weight update. Unlike ``SGD``, a rate that falls leaves the velocity that
earlier rates built up. Rates come from the control tensor ``hyper`` at run time: three for every
parameter, first all eps, then all momenta, then all decays. Where the rows of a parameter learn
for different numbers of classes, as in a softmax tree, both eps and decay are divided by these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import Op, quiet

#: Rates of one parameter, in the order of ``hyper``.
RATES = ("eps", "momentum", "decay")


class FilterLimit(NamedTuple):
    """Bounds of a filter's size over its number of weights; a filter is a slice of axis 0.

    Attributes:
        centred: the size is the length of the filter less its mean, otherwise its plain length.
        low, high: a smaller filter is stretched to ``low``, a larger one shrunk to ``high``.
    """

    centred: bool
    low: float
    high: float


@dataclass(frozen=True)
class VelocitySGD(Op):
    """Inputs (hyper, w_1..w_n, g_1..g_n, v_1..v_n, divisors); outputs (w_1'..w_n', v_1'..v_n').

    Outputs take their inputs' places. ``hyper`` is float64 (3 n,). States start at 0. The rates are
    rounded to the parameters' dtype.

    Attributes:
        limits: for each parameter its limits, in the order in which they are kept.
        divided: the parameters, by number, that have divisors: int64, one for each slice of
            axis 0, which divide eps and decay both.
    """

    differentiable: ClassVar[bool] = False
    states: ClassVar[int] = 1

    limits: tuple[tuple[FilterLimit, ...], ...]
    divided: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        limits = (tuple(FilterLimit(*limit) for limit in own) for own in self.limits)
        object.__setattr__(self, "limits", tuple(limits))  # a saved op holds plain tuples

    @property
    def count(self) -> int:
        """Number of parameters."""
        return len(self.limits)

    @property
    def divisors(self) -> Mapping[int, int]:
        """{parameter: the input that holds its divisors}."""
        return {i: 1 + 3 * self.count + place for place, i in enumerate(self.divided)}

    @property
    def arity_out(self) -> int:
        return 2 * self.count

    @property
    def inplace(self) -> Mapping[int, int]:
        count = self.count
        return {i: 1 + i + (count if i >= count else 0) for i in range(2 * count)}

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        count = self.count
        wanted = 1 + 3 * count + len(self.divided)
        if len(inputs) != wanted:
            raise ShapeError(f"{count} parameters take {wanted} tensors, got {len(inputs)}")
        if inputs[0].shape != (len(RATES) * count,):
            raise ShapeError(f"hyper must have {len(RATES) * count} rates, has {inputs[0].shape}")
        groups = [inputs[1 + i :: count][:3] for i in range(count)]
        for i, group in enumerate(groups):
            if any(spec.shape != group[0].shape for spec in group):
                shapes = [spec.shape for spec in group]
                raise ShapeError(f"parameter {i}, its gradient and velocity have shapes {shapes}")
        for i, place in self.divisors.items():
            rows = groups[i][0].shape[:1]
            if inputs[place] != TensorSpec(rows, "int64"):
                raise ShapeError(f"the divisors of parameter {i} must be {rows} int64")
        kept = (*inputs[1 : 1 + count], *inputs[1 + 2 * count : 1 + 3 * count])
        return tuple(TensorSpec(spec.shape, spec.dtype) for spec in kept)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        count = self.count
        rates = inputs[0].reshape(len(RATES), count)
        weights, velocities = [], []
        for i, limits in enumerate(self.limits):
            w, g, v = inputs[1 + i :: count][:3]
            eps, momentum, decay = (w.dtype.type(rate) for rate in rates[:, i])
            if i in self.divisors:
                rows = inputs[self.divisors[i]].astype(w.dtype).reshape(-1, *(1,) * (w.ndim - 1))
                eps, decay = eps / rows, decay / rows
            v = momentum * v - eps * g - eps * decay * w
            velocities.append(v)
            w = w + v
            for limit in limits:
                w = limited(w, limit)
            weights.append(w)
        return (*weights, *velocities)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        sizes = [spec.size for spec in outputs[: self.count]]
        limits = zip(sizes, self.limits, strict=True)
        return sum((7 + 4 * len(own)) * size for size, own in limits)


def limited(w: np.ndarray, limit: FilterLimit) -> np.ndarray:
    """Each filter of ``w`` brought between the bounds; sums in float64. A filter of 0 stays."""
    rows = w.reshape(len(w), -1).astype(np.float64)
    centre = rows.mean(axis=1, keepdims=True) if limit.centred else 0.0
    size = np.sqrt(np.square(rows - centre).sum(axis=1)) / rows.shape[1]
    wanted = np.clip(size, limit.low, limit.high)
    factor = np.divide(wanted, size, out=np.ones_like(size), where=size > 0)
    scaled: np.ndarray = w * factor.astype(w.dtype).reshape(-1, *(1,) * (w.ndim - 1))
    return scaled
