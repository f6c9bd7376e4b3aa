"""Losses that compare each element with its target, their gradient, and class numbers as rows.

The family: kind, the loss of one element x with target t and parameter a, and its other name:

    bce_logits  -(a t log s + (1 - t) log(1 - s))        BCEWithLogitsLoss(pos_weight=a)
                where s = 1 / (1 + exp(-x))
    bce         -(t log x + (1 - t) log(1 - x)),         BCELoss (a = 100), cost.crossent2 (a = 50)
                each logarithm at least -a
    mse         (x - t)^2                                MSELoss
    log_square  log(1 + (x - t)^2)                       cost.rflickr
    square      x^2; there is no target                  cost.sum2
    nll         -t x, and 0 where t is 0                 NLLLoss, t being one-hot rows

The losses of all elements are added up, then divided as ``reduction`` says: by the number of
elements (``mean``), of samples (``batchmean``), or not (``sum``). Sources: PyTorch's documentation;
cuda-convnet's wiki for its costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet

REDUCTIONS = ("mean", "sum", "batchmean")
#: What PyTorch keeps x (1 - x) above in the gradient of BCELoss.
_LEAST = 1e-12


def _softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x))."""
    result: np.ndarray = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return result


def _sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1 / (1 + np.exp(-x))
    return result


def _bce(x: np.ndarray, t: np.ndarray, a: float) -> np.ndarray:
    result: np.ndarray = -(t * np.maximum(np.log(x), -a) + (1 - t) * np.maximum(np.log1p(-x), -a))
    return result


@dataclass(frozen=True)
class _Kind:
    """One loss: its value, and its slope in x, of (x, t, a)."""

    value: Callable[[np.ndarray, np.ndarray, float], np.ndarray]
    slope: Callable[[np.ndarray, np.ndarray, float], np.ndarray]


#: {kind: its functions}, in the order of the head of this file.
LOSSES: Mapping[str, _Kind] = {
    "bce_logits": _Kind(
        lambda x, t, a: a * t * _softplus(-x) + (1 - t) * _softplus(x),
        lambda x, t, a: (1 - t) * _sigmoid(x) - a * t * _sigmoid(-x),
    ),
    "bce": _Kind(_bce, lambda x, t, a: (x - t) / np.maximum(x * (1 - x), _LEAST)),
    "mse": _Kind(lambda x, t, a: (x - t) ** 2, lambda x, t, a: 2 * (x - t)),
    "log_square": _Kind(
        lambda x, t, a: np.log1p((x - t) ** 2),
        lambda x, t, a: 2 * (x - t) / (1 + (x - t) ** 2),
    ),
    "square": _Kind(lambda x, t, a: x * x, lambda x, t, a: 2 * x),
    "nll": _Kind(lambda x, t, a: np.where(t == 0, 0, -t * x), lambda x, t, a: -t),
}


@dataclass(frozen=True)
class _Parameters:
    """The attributes that a loss and its gradient share; see the head of this file."""

    kind: str
    reduction: str = "mean"
    a: float = 1.0

    @property
    def targets(self) -> int:
        """How many targets the loss reads: none or one."""
        return 0 if self.kind == "square" else 1

    def check(self, inputs: Sequence[TensorSpec]) -> None:
        """Raises ShapeError unless the loss exists and the target fits."""
        if self.kind not in LOSSES:
            raise ShapeError(f"unknown loss {self.kind!r}; known are {', '.join(LOSSES)}")
        if self.reduction not in REDUCTIONS:
            raise ShapeError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, it is {self.reduction!r}"
            )
        if not (math.isfinite(self.a) and self.a >= 0):
            raise ShapeError(f"the parameter of {self.kind} must be at least 0, it is {self.a}")
        if len(inputs) != 1 + self.targets:
            raise ShapeError(f"{self.kind} reads {1 + self.targets} tensors, it got {len(inputs)}")
        x, target = inputs[0], inputs[-1]
        if (target.shape, target.dtype) != (x.shape, x.dtype):
            raise ShapeError(
                f"the target must be {x.dtype} of the output's shape {x.shape}, it is "
                f"{target.dtype} of shape {target.shape}"
            )

    def divisor(self, shape: Sequence[int]) -> int:
        """What the sum over all elements is divided by."""
        if self.reduction == "sum":
            return 1
        return math.prod(shape) if self.reduction == "mean" else shape[0]


@dataclass(frozen=True)
class PointwiseLoss(_Parameters, Op):
    """Inputs x (N, ...) and, unless the kind has none, target t of its shape; output loss ().

    The sum is taken in float64. A mean over nothing is NaN, as in PyTorch.
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check(inputs)
        return (TensorSpec((), inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, t = (v.astype(np.promote_types(v.dtype, np.float64)) for v in (inputs[0], inputs[-1]))
        total = LOSSES[self.kind].value(x, t, self.a).sum()
        mean = np.divide(total, self.divisor(x.shape), dtype=x.dtype)
        return (np.asarray(mean.astype(inputs[0].dtype)),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        (dloss,), node = scope.grads, scope.node
        assert dloss is not None
        rest: list[str | None] = [None] * self.targets
        if not scope.wanted[0]:
            return [None, *rest]
        rule = PointwiseLossGrad(self.kind, self.reduction, self.a)
        return [*scope.add(rule, *node.inputs, dloss), *rest]

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """About four for each element; those with an exponential take more."""
        return 4 * inputs[0].size


@dataclass(frozen=True)
class PointwiseLossGrad(_Parameters, Op):
    """Inputs x, the target unless the kind has none, and dloss (); output dx of x's shape."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check(inputs[:-1])
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, t, dloss = inputs[0], inputs[-2], inputs[-1]
        scale = dloss / max(self.divisor(x.shape), 1)
        return ((LOSSES[self.kind].slope(x, t, self.a) * scale).astype(x.dtype),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 4 * inputs[0].size


@dataclass(frozen=True)
class OneHot(Op):
    """Input labels, int64 (N,); output float32 (N, classes): 1 at the label, else 0.

    A label out of range makes its row NaN, so that a loss of it is NaN; hosts refuse such labels
    before a run.
    """

    differentiable: ClassVar[bool] = False

    classes: int

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        labels = inputs[0]
        if len(labels.shape) != 1 or labels.dtype != "int64" or self.classes < 1:
            raise ShapeError(
                f"class numbers must be int64 of shape (N,) for at least one class, they are "
                f"{labels.dtype} of shape {labels.shape} for {self.classes}"
            )
        return (TensorSpec((labels.shape[0], self.classes)),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        labels = inputs[0][:, None]
        rows = (labels == np.arange(self.classes)).astype(np.float32)
        rows[((labels < 0) | (labels >= self.classes))[:, 0]] = np.nan
        return (rows,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 0
