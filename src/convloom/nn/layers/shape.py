"""Layers that only see their input in another shape, or not at all."""

from __future__ import annotations

from typing import Any

from convloom.ir import ShapeError
from convloom.nn import functional
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor


class Flatten(Layer):
    """Merge axes ``start_dim`` to ``end_dim``; the batch, axis 0, always stays."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        with named(f"Flatten({start_dim}, {end_dim})"):
            if start_dim == 0:
                raise ShapeError("start_dim must be at least 1, the batch cannot be merged")
        self.start_dim, self.end_dim = int(start_dim), int(end_dim)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Identity(Layer):
    """Its input, unchanged; takes and ignores any arguments, as torch.nn.Identity."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return x
