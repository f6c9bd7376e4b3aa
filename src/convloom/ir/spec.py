"""What a tensor is: its logical shape, its element type, and how it lies in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

DTYPES = frozenset({"float32", "float64", "uint8", "int32", "int64", "uint64"})


@dataclass(frozen=True)
class Layout:
    """How a logical array lies in memory: reshape to ``view``, transpose by ``order``, row-major.

    Public shapes are PyTorch's (NCHW, KCRS); a plan may store a tensor differently. ``view`` is
    needed where the logical shape hides axes: a Linear weight (O, C*H*W) behind a Flatten is
    stored as (O, H, W, C) with ``view=(O, C, H, W)`` and ``order=(0, 2, 3, 1)``. A ``-1`` in
    ``view`` stands for the batch, so that a layout is the same for every batch size.
    """

    name: str
    order: tuple[int, ...] | None = None
    view: tuple[int, ...] | None = None

    def store(self, logical: np.ndarray) -> np.ndarray:
        """A row-major array whose memory is ``logical`` in this layout."""
        return np.ascontiguousarray(self._permuted(logical))

    def stored_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the row-major memory that holds a logical ``shape``."""
        if self.order is None:
            return tuple(shape)
        viewed = self._view_of(shape)
        return tuple(viewed[axis] for axis in self.order)

    def logical(self, memory: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """The logical array held by the flat or shaped ``memory``.

        A view wherever the layout only transposes; a copy where it also splits axes.
        """
        if self.order is None:
            return memory.reshape(shape)
        inverse = np.argsort(self.order)
        return memory.reshape(self.stored_shape(shape)).transpose(inverse).reshape(shape)

    def _permuted(self, logical: np.ndarray) -> np.ndarray:
        if self.order is None:
            return logical
        return logical.reshape(self._view_of(logical.shape)).transpose(self.order)

    def _view_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        if self.view is None:
            return tuple(shape)
        return tuple(shape[0] if extent == -1 else extent for extent in self.view)


ROW_MAJOR = Layout("row")
NHWC = Layout("nhwc", (0, 2, 3, 1))
KRSC = Layout("krsc", (0, 2, 3, 1))


def flattened_nhwc(channels: int, height: int, width: int) -> Layout:
    """The layout of a flattened (N, C*H*W) tensor whose memory is still NHWC."""
    return Layout("nhwc-flat", (0, 2, 3, 1), (-1, channels, height, width))


@dataclass(frozen=True)
class TensorSpec:
    """Shape, element type and layout of one tensor.

    ``shape`` is logical: (N, C, H, W) for images and (K, C, R, S) for filters.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: Layout = ROW_MAJOR

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            known = ", ".join(sorted(DTYPES))
            raise ValueError(f"unknown dtype {self.dtype!r}; known are {known}")
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"a tensor cannot have a negative extent: {self.shape}")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self.size * np.dtype(self.dtype).itemsize

    def with_layout(self, layout: Layout) -> TensorSpec:
        """The same tensor, stored as ``layout`` says."""
        return replace(self, layout=layout)

    def __str__(self) -> str:
        extents = "×".join(str(extent) for extent in self.shape) or "scalar"
        suffix = "" if self.layout.order is None else f" {self.layout.name}"
        return f"{extents} {self.dtype}{suffix}"
