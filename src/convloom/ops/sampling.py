"""cuda-convnet's further image layers: nailbed (every so many pixels), Gaussian blur, mirror.

Source: layers ``nailbed``, ``blur`` and ``href`` of cuda-convnet (Krizhevsky, 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError
from convloom.ops.axis_map import MapBackward, MapForward, Taps
from convloom.ops.base import Op
from convloom.ops.geometry import Pair

#: The longest filter of a blur.
LONGEST = 9


@dataclass(frozen=True)
class _NailbedGeometry:
    """Attributes that a nailbed and its gradient share."""

    stride: int

    def output(self, size: Pair) -> Pair:
        if self.stride < 1 or min(size) < 1:
            raise ShapeError(
                f"a nailbed needs a stride of at least 1 and an image, they are {self.stride} and "
                f"{size[0]}x{size[1]}"
            )
        return -(-size[0] // self.stride), -(-size[1] // self.stride)

    def taps(self, axis: int, size: int, positions: int) -> Taps:
        first = (size - self.stride * (positions - 1)) // 2
        return Taps.single(np.arange(positions) * self.stride + first)


@dataclass(frozen=True)
class Nailbed(_NailbedGeometry, MapForward, Op):
    """Input x (N,C,H,W); output y (N,C,ceil(H/stride),ceil(W/stride)): every stride-th pixel.

    The first is pixel floor((H - stride * (P - 1)) / 2), so that the bed lies in the middle.
    """

    def transposed(self, size: Pair) -> Op:
        return NailbedGrad(self.stride, size)


@dataclass(frozen=True)
class NailbedGrad(_NailbedGeometry, MapBackward, Op):
    """Input dy (N,C,P,Q); output dx (N,C,*size), 0 between the nails."""

    size: Pair = (1, 1)


@dataclass(frozen=True)
class Mirror(MapForward, Op):
    """Input x (N,C,H,W); output y, left and right exchanged. Its own gradient."""

    def output(self, size: Pair) -> Pair:
        return size

    def taps(self, axis: int, size: int, positions: int) -> Taps:
        index = np.arange(positions)
        return Taps.single(index if axis == 0 else index[::-1])

    def transposed(self, size: Pair) -> Op:
        return self


@dataclass(frozen=True)
class Blur(MapForward, Op):
    """Input x (N,C,H,W); output y, blurred along rows and columns. Its own gradient.

    The taps of a Gaussian of deviation ``stdev`` are scaled to a sum of 1; beyond the image are
    zeros, and the border is not scaled up for them.
    """

    filter_size: int
    stdev: float

    @property
    def weights(self) -> np.ndarray:
        """The taps."""
        distance = np.arange(self.filter_size) - self.filter_size // 2
        taps = np.exp(-(distance**2) / (2 * self.stdev**2))
        return np.asarray(taps / taps.sum())

    def output(self, size: Pair) -> Pair:
        if self.filter_size % 2 == 0 or not 1 <= self.filter_size <= LONGEST:
            raise ShapeError(
                f"a blur has an odd filter size of at most {LONGEST}, it is {self.filter_size}"
            )
        if not (math.isfinite(self.stdev) and self.stdev > 0):
            raise ShapeError(f"a blur needs a positive stdev, it is {self.stdev}")
        return size

    def taps(self, axis: int, size: int, positions: int) -> Taps:
        reach = self.filter_size // 2
        index = np.arange(positions) + np.arange(-reach, reach + 1)[:, None]
        index = np.where(index < size, index, -1)
        return Taps(index, np.repeat(self.weights[:, None], positions, axis=1))

    def transposed(self, size: Pair) -> Op:
        return self
