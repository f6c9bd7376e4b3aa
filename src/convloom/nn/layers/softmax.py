"""Softmax and its logarithm along an axis."""

from __future__ import annotations

from convloom.ir import ShapeError
from convloom.nn import functional
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor


class _AlongAxis(Layer):
    """``dim`` is any axis but the batch's; 1, the channels, unless given."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        with named(f"{type(self).__name__}({dim})"):
            if dim == 0:
                raise ShapeError("dim must not be 0, samples do not share a sum")
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_AlongAxis):
    """Positive numbers that sum to 1 along an axis, as torch.nn.Softmax."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.softmax(x, self.dim)


class LogSoftmax(_AlongAxis):
    """The logarithms of Softmax, as torch.nn.LogSoftmax."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.log_softmax(x, self.dim)
