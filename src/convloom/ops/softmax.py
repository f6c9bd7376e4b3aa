"""Softmax and its logarithm along one axis, and their gradients.

    softmax:      y = exp(x - max x) / sum exp(x - max x)      dx = y (dy - sum(dy y))
    log softmax:  y = (x - max x) - log sum exp(x - max x)     dx = dy - exp(y) sum(dy)

Source: torch.nn.Softmax and torch.nn.LogSoftmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet


@dataclass(frozen=True)
class _Axis:
    """What softmax and its gradient share: the axis, never the batch, and whether logarithms."""

    dim: int = 1
    log: bool = False

    def check(self, x: TensorSpec) -> None:
        """Raises ShapeError unless the axis exists and is not the batch."""
        if not 1 <= self.dim < len(x.shape):
            raise ShapeError(
                f"softmax goes along an axis behind the batch, 1 to {len(x.shape) - 1} for shape "
                f"{x.shape}, not along axis {self.dim}"
            )


@dataclass(frozen=True)
class Softmax(_Axis, Op):
    """Input x (N, ...); output y of its shape: along ``dim`` y, or exp(y) if ``log``, sums to 1."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check(inputs[0])
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        shifted = x - x.max(axis=self.dim, keepdims=True) if x.size else x.copy()
        powers = np.exp(shifted)
        total = powers.sum(axis=self.dim, keepdims=True)
        return (shifted - np.log(total) if self.log else powers / total,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        return scope.add(SoftmaxGrad(self.dim, self.log), dy, scope.node.outputs[0])

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Each element: a comparison, a subtraction, an exponential, an addition, a division."""
        return 5 * inputs[0].size


@dataclass(frozen=True)
class SoftmaxGrad(_Axis, Op):
    """Inputs dy and the softmax's output y, of one shape; output dx."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, y = inputs
        self.check(y)
        if dy.shape != y.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the softmax {y.shape}")
        return (TensorSpec(dy.shape, dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, y = inputs
        if self.log:
            return (dy - np.exp(y) * dy.sum(axis=self.dim, keepdims=True),)
        return (y * (dy - (dy * y).sum(axis=self.dim, keepdims=True)),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Each element: two products, an addition, a subtraction (log: an exponential)."""
        return 4 * inputs[0].size
