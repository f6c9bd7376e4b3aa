"""Dropout of elements and of channels.

Masks are keyed by seed, layer, step and element; evaluation and prediction have none.
"""

from __future__ import annotations

from convloom.nn import functional
from convloom.nn.arguments import probability
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor


class Dropout(Layer):
    """Zero each element with chance ``p`` and scale the rest by 1/(1 - p), in training steps.

    Args:
        rescale: False leaves the rest as it is and multiplies by 1 - p in prediction, as
            cuda-convnet's ``hs`` layer (PyTorch has no such option).
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, rescale: bool = True) -> None:
        super().__init__()
        with named(f"Dropout({p})"):
            self.p = probability(p)
        self.inplace, self.rescale = bool(inplace), bool(rescale)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.dropout(x, self.p, rescale=self.rescale)

    def extra_repr(self) -> str:
        more = "" if self.rescale else ", rescale=False"
        return f"p={self.p}, inplace={self.inplace}{more}"


class Dropout2d(Layer):
    """Zero each channel of each sample with chance ``p``, scale the rest by 1/(1 - p)."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        with named(f"Dropout2d({p})"):
            self.p = probability(p)
        self.inplace = bool(inplace)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.dropout2d(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
