"""Dropout."""

from __future__ import annotations

from convloom.nn import functional
from convloom.nn.arguments import probability
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor


class Dropout(Layer):
    """Zero each element with chance ``p`` and scale the rest by 1/(1 - p), in training steps.

    Masks are keyed by seed, layer, step and element; evaluation and prediction have none.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        with named(f"Dropout({p})"):
            self.p = probability(p)
        self.inplace = bool(inplace)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
