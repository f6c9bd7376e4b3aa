"""Maps of images that act on rows and columns apart: padding, resizing, sampling, mirrors, blurs.

    y[n,c,p,q] = sum over i,j of A[p,i] B[q,j] x[n,c,i,j]

A and B have few entries in a row, the taps of that output. The gradient is the same with A and B
transposed. What is shared by all such ops is here; each says its taps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.geometry import Pair


@dataclass(frozen=True)
class Taps:
    """The taps of one axis: of output p, input ``index[t, p]`` with ``weight[t, p]``.

    Where the index is negative there is no tap.
    """

    index: np.ndarray
    weight: np.ndarray

    @classmethod
    def single(cls, index: np.ndarray) -> Taps:
        """One tap of weight 1 an output."""
        return cls(index[None], np.ones((1, len(index))))


class AxisMap:
    """What a map and its gradient share: attributes, sizes, and taps."""

    @abstractmethod
    def output(self, size: Pair) -> Pair:
        """The size of the output. Raises ShapeError, with sizes and remedy, if impossible."""

    @abstractmethod
    def taps(self, axis: int, size: int, positions: int) -> Taps:
        """The taps of an axis of ``size`` inputs and ``positions`` outputs."""

    def met(self, size: Pair) -> Iterator[tuple[_Met, _Met]]:
        """For each pair of taps, by axis: the outputs that have it, its inputs, its weights."""
        rows, cols = (
            list(_met(self.taps(axis, size[axis], positions)))
            for axis, positions in enumerate(self.output(size))
        )
        for row in rows:
            for col in cols:
                yield row, col


class MapForward(AxisMap):
    """What forward ops share. Input x (N,C,H,W); output y (N,C,*output)."""

    #: What y is where no tap is inside.
    fill: float = 0.0

    @abstractmethod
    def transposed(self, size: Pair) -> Op:
        """The op that makes dx of ``size`` from dy."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        if len(x.shape) != 4:
            raise ShapeError(f"images must have shape (N, C, H, W), it got {x.shape}")
        size = self.output((x.shape[2], x.shape[3]))
        return (TensorSpec((*x.shape[:2], *size), x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        size = (x.shape[2], x.shape[3])
        y = np.full((*x.shape[:2], *self.output(size)), self.fill, x.dtype)
        seen = np.zeros(y.shape[2:], bool)
        for (p, i, a), (q, j, b) in self.met(size):
            weight = np.outer(a, b).astype(x.dtype)
            term = weight * x[:, :, i[:, None], j]
            at = (slice(None), slice(None), p[:, None], q)
            y[at] = np.where(seen[p[:, None], q], y[at] + term, term)
            seen[p[:, None], q] = True
        return (y,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        _, _, height, width = scope.spec(scope.node.inputs[0]).shape
        return scope.add(self.transposed((height, width)), dy)


class MapBackward(AxisMap):
    """What gradient ops share. Input dy (N,C,P,Q); output dx (N,C,*size)."""

    size: Pair

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy = inputs[0]
        if dy.shape[2:] != self.output(self.size):
            raise ShapeError(f"the gradient {dy.shape} does not fit an input of {self.size}")
        return (TensorSpec((*dy.shape[:2], *self.size), dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy = inputs[0]
        dx = np.zeros((*dy.shape[:2], *self.size), dy.dtype)
        for (p, i, a), (q, j, b) in self.met(self.size):
            weight = np.outer(a, b).astype(dy.dtype)
            at = (slice(None), slice(None), i[:, None], j)
            np.add.at(dx, at, weight * dy[:, :, p[:, None], q])  # type: ignore[arg-type]
        return (dx,)


_Met = tuple[np.ndarray, np.ndarray, np.ndarray]


def _met(taps: Taps) -> Iterator[_Met]:
    """For each tap: the outputs that have it, their inputs, and its weights there."""
    for index, weight in zip(taps.index, taps.weight, strict=True):
        at = np.flatnonzero(index >= 0)
        yield at, index[at], weight[at]
