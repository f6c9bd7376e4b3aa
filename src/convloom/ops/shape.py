"""Ops that move or join tensors: flatten, unflatten, add, concatenate, slice.

Source: torch.nn.Flatten, torch.add, torch.cat (dim=1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet


class _Copy(Op):
    """An op that computes nothing: its elements are moved, or only seen in another shape."""

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 0


@dataclass(frozen=True)
class Flatten(_Copy):
    """Input x (N, ...); output y (N, product of the rest)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        if not x.shape:
            raise ShapeError("Flatten needs a batch axis, it got a scalar")
        return (TensorSpec((x.shape[0], math.prod(x.shape[1:])), x.dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        return (x.reshape(x.shape[0], math.prod(x.shape[1:])).copy(),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        return scope.add(Unflatten(scope.spec(scope.node.inputs[0]).shape[1:]), dy)


@dataclass(frozen=True)
class Unflatten(_Copy):
    """Input x (N, ...); output y (N, *shape), of as many elements. The gradient of ``Flatten``."""

    shape: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        if math.prod(x.shape[1:]) != math.prod(self.shape):
            raise ShapeError(
                f"a sample of shape {x.shape[1:]} ({math.prod(x.shape[1:])} elements) cannot "
                f"take shape {self.shape} ({math.prod(self.shape)} elements)"
            )
        return (TensorSpec((x.shape[0], *self.shape), x.dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        return (x.reshape(x.shape[0], *self.shape).copy(),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        return scope.add(Unflatten(scope.spec(scope.node.inputs[0]).shape[1:]), dy)


@dataclass(frozen=True)
class Add(Op):
    """Inputs a and b of one shape; output their sum."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        a, b = inputs
        if a.shape != b.shape:
            raise ShapeError(
                f"only tensors of one shape can be added, these are {a.shape} and {b.shape}"
            )
        return (TensorSpec(a.shape, a.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        a, b = inputs
        return (a + b,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        return [dy if wanted else None for wanted in scope.wanted]


@dataclass(frozen=True)
class Concat(_Copy):
    """Inputs x_i (N, C_i, ...), at least one; output y (N, sum of C_i, ...)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not inputs or any(len(x.shape) < 2 for x in inputs):
            raise ShapeError("Concat joins at least one tensor of shape (N, C, ...) along axis 1")
        first = inputs[0].shape
        for x in inputs[1:]:
            if (x.shape[0], *x.shape[2:]) != (first[0], *first[2:]):
                raise ShapeError(
                    f"tensors joined along axis 1 must agree in every other axis, these are "
                    f"{first} and {x.shape}"
                )
        channels = sum(x.shape[1] for x in inputs)
        return (TensorSpec((first[0], channels, *first[2:]), inputs[0].dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.concatenate(inputs, axis=1),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        channels = [scope.spec(name).shape[1] for name in scope.node.inputs]
        grads: list[str | None] = []
        for stop, size, wanted in zip(accumulate(channels), channels, scope.wanted, strict=True):
            grads.append(scope.add(Slice(stop - size, stop), dy)[0] if wanted else None)
        return grads


@dataclass(frozen=True)
class Slice(_Copy):
    """Channels [start, stop). Input x (N, C, ...); output y (N, stop - start, ...).

    The gradient of one input of ``Concat``.
    """

    start: int
    stop: int

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        if not 0 <= self.start <= self.stop <= x.shape[1]:
            raise ShapeError(
                f"channels {self.start} to {self.stop} are not all among the {x.shape[1]} of "
                f"the input {x.shape}"
            )
        return (TensorSpec((x.shape[0], self.stop - self.start, *x.shape[2:]), x.dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (inputs[0][:, self.start : self.stop].copy(),)

    def nbytes(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Only the slice is read."""
        return 2 * outputs[0].nbytes
