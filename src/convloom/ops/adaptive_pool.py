"""Adaptive pooling: the output's size is given, and windows of nearly equal size cover the input.

Window p of P over H cells is [floor(p*H/P), ceil((p+1)*H/P)); neighbours may overlap by a cell.
Sources: torch.nn.AdaptiveAvgPool2d, torch.nn.AdaptiveMaxPool2d.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.geometry import Pair
from convloom.ops.pool import (
    image_shape,
    maximum,
    maximum_grad_spec,
    maximum_specs,
    scattered,
)


@dataclass(frozen=True)
class AdaptiveAvgPool2d(Op):
    """Input x (N,C,H,W); output y (N,C,*output), the mean of each window."""

    output: Pair

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(_shape(inputs[0], self.output), inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        y = np.empty((*x.shape[:2], *self.output), x.dtype)
        for (p, q), (rows, cols) in _windows(self.output, x.shape[2:]):
            y[:, :, p, q] = x[:, :, rows, cols].mean(axis=(2, 3))
        return (y,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        _, _, height, width = scope.spec(scope.node.inputs[0]).shape
        return scope.add(AdaptiveAvgPool2dGrad((height, width)), dy)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size


@dataclass(frozen=True)
class AdaptiveAvgPool2dGrad(Op):
    """Input dy (N,C,P,Q); output dx (N,C,*size)."""

    size: Pair

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec((*inputs[0].shape[:2], *self.size), inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy = inputs[0]
        dx = np.zeros((*dy.shape[:2], *self.size), dy.dtype)
        for (p, q), (rows, cols) in _windows(dy.shape[2:], self.size):
            cells = dx[:, :, rows, cols]
            cells += dy[:, :, p, q, None, None] / dy.dtype.type(cells.shape[2] * cells.shape[3])
        return (dx,)


@dataclass(frozen=True)
class AdaptiveMaxPool2d(Op):
    """Input x (N,C,H,W); outputs y (N,C,*output) and index, int32, as of ``MaxPool2d``."""

    output: Pair

    @property
    def arity_out(self) -> int:
        return 2

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return maximum_specs(inputs[0], _shape(inputs[0], self.output))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        return maximum(x, self.output, _taps(self.output, x.shape[2:]))

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        _, _, height, width = scope.spec(scope.node.inputs[0]).shape
        return scope.add(AdaptiveMaxPool2dGrad((height, width)), dy, scope.node.outputs[1])

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size


@dataclass(frozen=True)
class AdaptiveMaxPool2dGrad(Op):
    """Inputs dy (N,C,P,Q) and index int32 of ``AdaptiveMaxPool2d``; output dx (N,C,*size)."""

    size: Pair

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (maximum_grad_spec(self.size, inputs),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (scattered(self.size, *inputs),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size


def _shape(x: TensorSpec, output: Pair) -> tuple[int, ...]:
    n, c, *size = image_shape(x)
    if min(output) < 1 or min(size) < 1:
        raise ShapeError(
            f"adaptive pooling of {size[0]}x{size[1]} to {output[0]}x{output[1]} is impossible; "
            "both need at least one cell an axis"
        )
    return (n, c, *output)


def _ranges(positions: int, size: int) -> list[slice]:
    """The cells of each window of an axis."""
    return [slice(p * size // positions, -(-(p + 1) * size // positions)) for p in range(positions)]


def _windows(
    output: Sequence[int], size: Sequence[int]
) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    for p, rows in enumerate(_ranges(output[0], size[0])):
        for q, cols in enumerate(_ranges(output[1], size[1])):
            yield (p, q), (rows, cols)


_Axis = tuple[np.ndarray, np.ndarray]


def _taps(output: Sequence[int], size: Sequence[int]) -> Iterator[tuple[_Axis, _Axis]]:
    """For each tap in scan order, by axis: the windows that have it, and the cells it meets."""
    axes: list[list[_Axis]] = []
    for axis in range(2):
        ranges = _ranges(output[axis], size[axis])
        starts, stops = (np.array([getattr(r, end) for r in ranges]) for end in ("start", "stop"))
        met = []
        for tap in range(max(stops - starts)):
            inside = np.flatnonzero(starts + tap < stops)
            met.append((inside, starts[inside] + tap))
        axes.append(met)
    for rows in axes[0]:
        for cols in axes[1]:
            yield rows, cols
