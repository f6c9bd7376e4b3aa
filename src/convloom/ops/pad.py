"""Padding of images with a constant, by reflection, or by repeating the border.

Source: torch.nn.ZeroPad2d, ConstantPad2d, ReflectionPad2d, ReplicationPad2d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError
from convloom.ops.axis_map import MapBackward, MapForward, Taps
from convloom.ops.base import Op
from convloom.ops.geometry import Pair

Sides = tuple[int, int, int, int]

CONSTANT, REFLECT, REPLICATE = "constant", "reflect", "replicate"
_AXES = ("height", "width")


@dataclass(frozen=True)
class _PadGeometry:
    """Attributes that padding and its gradient share.

    ``sides`` are (left, right, top, bottom), as PyTorch orders them; with ``mode`` "constant" a
    negative side is cut off.
    """

    sides: Sides
    mode: str = CONSTANT

    def around(self, axis: int) -> Pair:
        """Cells before and behind an axis."""
        return self.sides[2:] if axis == 0 else self.sides[:2]

    def output(self, size: Pair) -> Pair:
        if self.mode not in (CONSTANT, REFLECT, REPLICATE):
            raise ShapeError(
                f"mode must be {CONSTANT!r}, {REFLECT!r} or {REPLICATE!r}, it is {self.mode!r}"
            )
        height, width = (self._extent(axis, size[axis]) for axis in range(2))
        return height, width

    def _extent(self, axis: int, size: int) -> int:
        before, behind = self.around(axis)
        if self.mode != CONSTANT and (min(before, behind) < 0 or size == 0):
            raise ShapeError(
                f"padding by {self.mode!r} needs sides of at least 0 and an input, the sides are "
                f"{self.sides} for a {_AXES[axis]} of {size}"
            )
        if self.mode == REFLECT and max(before, behind) >= size:
            raise ShapeError(
                f"padding by reflection must be less than the input's {_AXES[axis]} of {size}, it "
                f"is {max(before, behind)}"
            )
        if size + before + behind < 1 or min(before, behind) <= -size < 0:
            raise ShapeError(f"padding {self.sides} leaves nothing of a {_AXES[axis]} of {size}")
        return size + before + behind

    def taps(self, axis: int, size: int, positions: int) -> Taps:
        index = np.arange(positions) - self.around(axis)[0]
        if self.mode == REFLECT:
            index = np.abs(index)
            index = np.where(index < size, index, 2 * (size - 1) - index)
        elif self.mode == REPLICATE:
            index = np.clip(index, 0, size - 1)
        else:
            index = np.where(index < size, index, -1)
        return Taps.single(index)


@dataclass(frozen=True)
class Pad2d(_PadGeometry, MapForward, Op):
    """Input x (N,C,H,W); output y (N,C,P,Q), x with ``sides`` around it."""

    value: float = 0.0

    @property
    def fill(self) -> float:  # type: ignore[override]
        """The constant."""
        return self.value

    def transposed(self, size: Pair) -> Op:
        return Pad2dGrad(self.sides, self.mode, size)


@dataclass(frozen=True)
class Pad2dGrad(_PadGeometry, MapBackward, Op):
    """Input dy (N,C,P,Q); output dx (N,C,*size)."""

    size: Pair = (1, 1)
