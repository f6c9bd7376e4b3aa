"""The update rule of cuda-convnet: the rate inside the velocity, rates of its own for every tensor.

    v = momentum v - eps g - eps decay w;  w = w + v;  then limits on each filter's size

Source: the 2012 code's weight update. Unlike ``SGD``, a rate that falls leaves the velocity that
earlier rates built up. Rates come from the control tensor ``hyper`` at run time: three for every
parameter, first all eps, then all momenta, then all decays. Where the rows of a parameter learn
for different numbers of classes, as in a softmax tree, both eps and decay are divided by these.

With ``superEps`` a parameter's gradient is divided by its own size of late, as it was written then:

    m = momentum m + (1 - momentum) g;  s = momentum s + (1 - momentum) g²
    v = 0.9 v - eps g / sqrt(s + m + superEps);  w = w + v

There is no decay, and as m is added where its square might have been subtracted, the root may be of
a number below 0, which gives NaN: s + m is never below -1/4, so a superEps above it is safe.

One update may be made of the gradients of several minibatches, their mean. Then ``hyper`` has two
slots more: whether a minibatch is not the first of its update (``keep``), and whether it is the
last (``move``), after which alone w and v, limits and the means above move.
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
#: What ``hyper`` has behind all rates where several minibatches make an update.
SUMMING = ("keep", "move")
#: Momentum of the velocity where gradients are divided by their size.
ADAPTIVE_MOMENTUM = 0.9


class FilterLimit(NamedTuple):
    """Bounds of a filter's size over its number of weights; a filter is a slice of axis 0.

    Attributes:
        centred: the size is the length of the filter less its mean, otherwise its plain length.
        low, high: a smaller filter is stretched to ``low``, a larger one shrunk to ``high``.
    """

    centred: bool
    low: float
    high: float


class Operands(NamedTuple):
    """The inputs of an update that belong to one parameter, by their numbers.

    Attributes:
        means: the running mean of its gradient, and of that squared; None without.
        sum: the sum of the gradients of an update's minibatches; None where it has one only.
        divisors: what its rates are divided by; None without.
    """

    w: int
    g: int
    v: int
    means: tuple[int, int] | None
    sum: int | None
    divisors: int | None


@dataclass(frozen=True)
class VelocitySGD(Op):
    """Inputs (hyper, w_1..w_n, g_1..g_n, v_1..v_n, means, squares, sums, divisors); outputs the new
    (w_1'..w_n', v_1'..v_n', means, squares, sums), which take their inputs' places.

    ``hyper`` is float64 (3 n,), or (3 n + 2,). States start at 0. The rates are rounded to the
    parameters' dtype.

    Attributes:
        limits: for each parameter its limits, in the order in which they are kept.
        divided: the parameters, by number, that have divisors: int64, one for each slice of
            axis 0, which divide eps and decay both.
        adaptive: (parameter, superEps) of those whose gradients are divided by their size; these
            have a mean and a mean of squares among the states.
        every: minibatches of an update; for several, each parameter has a sum among the states.
    """

    differentiable: ClassVar[bool] = False

    limits: tuple[tuple[FilterLimit, ...], ...]
    divided: tuple[int, ...] = ()
    adaptive: tuple[tuple[int, float], ...] = ()
    every: int = 1

    def __post_init__(self) -> None:
        limits = (tuple(FilterLimit(*limit) for limit in own) for own in self.limits)
        object.__setattr__(self, "limits", tuple(limits))  # a saved op holds plain tuples

    @property
    def count(self) -> int:
        """Number of parameters."""
        return len(self.limits)

    @property
    def summing(self) -> bool:
        """Whether an update has several minibatches."""
        return self.every > 1

    @property
    def slots(self) -> int:
        """The length of ``hyper``."""
        return len(RATES) * self.count + (len(SUMMING) if self.summing else 0)

    @property
    def operands(self) -> tuple[Operands, ...]:
        """Where each parameter's tensors are among the inputs."""
        count, states = self.count, len(self.adaptive)
        first = 1 + 3 * count
        sums = first + 2 * states
        last = sums + (count if self.summing else 0)
        means = {i: (first + at, first + states + at) for at, (i, _) in enumerate(self.adaptive)}
        divisors = {i: last + at for at, i in enumerate(self.divided)}
        return tuple(
            Operands(
                *(1 + i, 1 + count + i, 1 + 2 * count + i),
                means.get(i),
                sums + i if self.summing else None,
                divisors.get(i),
            )
            for i in range(count)
        )

    @property
    def arity_out(self) -> int:
        return (3 if self.summing else 2) * self.count + 2 * len(self.adaptive)

    @property
    def inplace(self) -> Mapping[int, int]:
        count = self.count
        return {i: 1 + i + (count if i >= count else 0) for i in range(self.arity_out)}

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        count = self.count
        wanted = 1 + count + self.arity_out + len(self.divided)
        if len(inputs) != wanted:
            raise ShapeError(f"{count} parameters take {wanted} tensors, got {len(inputs)}")
        if inputs[0].shape != (self.slots,):
            raise ShapeError(f"hyper must have {self.slots} rates, has {inputs[0].shape}")
        for i, own in enumerate(self.operands):
            sums = () if own.sum is None else (own.sum,)
            shapes = [inputs[at].shape for at in (own.w, own.g, own.v, *(own.means or ()), *sums)]
            if any(shape != shapes[0] for shape in shapes):
                raise ShapeError(f"parameter {i}, its gradient and states have shapes {shapes}")
            rows = shapes[0][:1]
            if own.divisors is not None and inputs[own.divisors] != TensorSpec(rows, "int64"):
                raise ShapeError(f"the divisors of parameter {i} must be {rows} int64")
        kept = (inputs[self.inplace[i]] for i in range(self.arity_out))
        return tuple(TensorSpec(spec.shape, spec.dtype) for spec in kept)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        rates, floors = inputs[0][: len(RATES) * self.count], dict(self.adaptive)
        rates = rates.reshape(len(RATES), self.count)
        new = dict[int, np.ndarray]()
        keep, move = inputs[0][-len(SUMMING) :] if self.summing else (False, True)
        for i, own in enumerate(self.operands):
            w, g, v = (inputs[at] for at in (own.w, own.g, own.v))
            if own.sum is not None:
                new[own.sum] = inputs[own.sum] + g if keep else g.copy()
                g = new[own.sum] / w.dtype.type(self.every)
            if not move:
                new |= {at: inputs[at].copy() for at in (own.w, own.v, *(own.means or ()))}
                continue
            eps, momentum, decay = (w.dtype.type(rate) for rate in rates[:, i])
            if own.divisors is not None:
                rows = inputs[own.divisors].astype(w.dtype).reshape(-1, *(1,) * (w.ndim - 1))
                eps, decay = eps / rows, decay / rows
            if own.means is None:
                v = momentum * v - eps * g - eps * decay * w
            else:
                mean, square = (
                    momentum * inputs[at] + (1 - momentum) * value
                    for at, value in zip(own.means, (g, g * g), strict=True)
                )
                size = np.sqrt(square + mean + w.dtype.type(floors[i]))
                v = w.dtype.type(ADAPTIVE_MOMENTUM) * v - eps * g / size
                new |= zip(own.means, (mean, square), strict=True)
            new |= {own.v: v, own.w: _within(w + v, self.limits[i])}
        return tuple(new[self.inplace[i]] for i in range(self.arity_out))

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        sizes = [spec.size for spec in outputs[: self.count]]
        limits = zip(sizes, self.limits, strict=True)
        more = sum(9 * sizes[i] for i, _ in self.adaptive) + 2 * self.summing * sum(sizes)
        return more + sum((7 + 4 * len(own)) * size for size, own in limits)


def _within(w: np.ndarray, limits: Sequence[FilterLimit]) -> np.ndarray:
    for limit in limits:
        w = limited(w, limit)
    return w


def limited(w: np.ndarray, limit: FilterLimit) -> np.ndarray:
    """Each filter of ``w`` brought between the bounds; sums in float64. A filter of 0 stays."""
    rows = w.reshape(len(w), -1).astype(np.float64)
    centre = rows.mean(axis=1, keepdims=True) if limit.centred else 0.0
    size = np.sqrt(np.square(rows - centre).sum(axis=1)) / rows.shape[1]
    wanted = np.clip(size, limit.low, limit.high)
    factor = np.divide(wanted, size, out=np.ones_like(size), where=size > 0)
    scaled: np.ndarray = w * factor.astype(w.dtype).reshape(-1, *(1,) * (w.ndim - 1))
    return scaled
