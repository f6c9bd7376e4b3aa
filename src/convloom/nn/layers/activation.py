"""Activations."""

from __future__ import annotations

from convloom.nn import functional
from convloom.nn.layers.base import Layer
from convloom.nn.tensor import SymbolicTensor


class ReLU(Layer):
    """max(x, 0), element by element.

    ``inplace`` changes nothing: a plan shares memory wherever it can.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = bool(inplace)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.relu(x)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""
