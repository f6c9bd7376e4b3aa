"""Sums with coefficients, and products, of tensors of one shape.

Source: cuda-convnet's ``eltsum`` layer; torch.mul. The plain sum of two is ``Add`` of shape.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.activation import Activation
from convloom.ops.base import GradientScope, Op, quiet


def _one_shape(what: str, inputs: Sequence[TensorSpec]) -> TensorSpec:
    first = inputs[0]
    for other in inputs[1:]:
        if other.shape != first.shape:
            raise ShapeError(
                f"only tensors of one shape can be {what}, these are {first.shape} and "
                f"{other.shape}"
            )
    return TensorSpec(first.shape, first.dtype)


@dataclass(frozen=True)
class WeightedSum(Op):
    """Inputs x_i of one shape, one for each coefficient c_i; output the sum of c_i * x_i."""

    coefficients: tuple[float, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not inputs or len(inputs) != len(self.coefficients):
            raise ShapeError(
                f"a weighted sum needs a coefficient for each tensor, it got "
                f"{len(self.coefficients)} for {len(inputs)}"
            )
        if not all(math.isfinite(c) for c in self.coefficients):
            raise ShapeError(f"coefficients must be finite, they are {self.coefficients}")
        return (_one_shape("added", inputs),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        total = self.coefficients[0] * inputs[0]
        for c, x in zip(self.coefficients[1:], inputs[1:], strict=True):
            total = total + c * x
        return (total,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        return [
            None if not wanted else dy if c == 1 else scope.add(Activation("linear", c), dy)[0]
            for c, wanted in zip(self.coefficients, scope.wanted, strict=True)
        ]

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """A product for each coefficient other than 1, and the additions."""
        each = len(inputs) - 1 + sum(c != 1 for c in self.coefficients)
        return each * outputs[0].size


@dataclass(frozen=True)
class Mul(Op):
    """Inputs a and b of one shape; output their product, element by element."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (_one_shape("multiplied", inputs),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        a, b = inputs
        return (a * b,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        a, b = scope.node.inputs
        return [
            scope.add(Mul(), dy, other)[0] if wanted else None
            for other, wanted in zip((b, a), scope.wanted, strict=True)
        ]
