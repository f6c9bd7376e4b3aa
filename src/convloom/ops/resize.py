"""Resizing of images: nearest neighbour, and bilinear with corners aligned or not.

Output p of P over H inputs lies at p * (H - 1) / (P - 1) where corners are aligned, else at
max(0, (p + 1/2) * H / P - 1/2); the nearest neighbour is input floor(p * H / P). Positions are
fractions of whole numbers, so that every device finds the same neighbours.
Source: torch.nn.functional.interpolate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError
from convloom.ops.axis_map import MapBackward, MapForward, Taps
from convloom.ops.base import Op
from convloom.ops.geometry import Pair

NEAREST, BILINEAR = "nearest", "bilinear"


@dataclass(frozen=True)
class _ResizeGeometry:
    """Attributes that resizing and its gradient share. ``to`` is the output's size."""

    to: Pair
    mode: str = NEAREST
    align_corners: bool = False

    def output(self, size: Pair) -> Pair:
        if self.mode not in (NEAREST, BILINEAR):
            raise ShapeError(f"mode must be {NEAREST!r} or {BILINEAR!r}, it is {self.mode!r}")
        if min(*self.to, *size) < 1:
            raise ShapeError(f"an image of {size[0]}x{size[1]} cannot be resized to {self.to}")
        return self.to

    def taps(self, axis: int, size: int, positions: int) -> Taps:
        p = np.arange(positions)
        if self.mode == NEAREST:
            return Taps.single(p * size // positions)
        if self.align_corners:
            above, below = p * (size - 1), max(positions - 1, 1)
        else:
            above, below = np.maximum((2 * p + 1) * size - positions, 0), 2 * positions
        first, rest = np.divmod(above, below)
        second = rest / below
        index = np.stack([first, np.minimum(first + 1, size - 1)])
        return Taps(index, np.stack([1 - second, second]))


@dataclass(frozen=True)
class Resize2d(_ResizeGeometry, MapForward, Op):
    """Input x (N,C,H,W); output y (N,C,*to)."""

    def transposed(self, size: Pair) -> Op:
        return Resize2dGrad(self.to, self.mode, self.align_corners, size)


@dataclass(frozen=True)
class Resize2dGrad(_ResizeGeometry, MapBackward, Op):
    """Input dy (N,C,*to); output dx (N,C,*size)."""

    size: Pair = (1, 1)
