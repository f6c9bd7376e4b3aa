"""fc as a module."""

from __future__ import annotations

import numpy as np

from convloom.convnet.layers import Extent, Fc
from convloom.convnet.modules.base import Piece, Weights, as_vector
from convloom.nn import Parameter, functional
from convloom.nn import init as initialisers
from convloom.nn.tensor import SymbolicTensor


class FcPiece(Piece):
    """The sum of every input's product with a matrix of its own, and one bias."""

    def __init__(self, fc: Fc, inputs: tuple[Extent, ...], shared: list[Parameter | None]) -> None:
        super().__init__()
        shapes = [(fc.outputs, extent.count) for extent in inputs]
        self.weights = Weights(shapes, fc.initial, shared)
        self.biases = Parameter((fc.outputs,), initialisers.Constant(fc.initial.bias))

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        y = functional.linear(as_vector(inputs[0]), self.weights[0], self.biases)
        for x, weight in zip(inputs[1:], list(self.weights)[1:], strict=True):
            y = y + functional.linear(as_vector(x), weight)
        return y

    def export(self) -> dict[str, np.ndarray]:
        """Matrices of (inputs, outputs), and a vector."""
        found = {f"weights/{i}": w.data.T.copy() for i, w in enumerate(self.weights)}
        return {**found, "biases": self.biases.data}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        for i, weight in enumerate(self.weights):
            weight.data = arrays[f"weights/{i}"].reshape(weight.shape[::-1]).T
        self.biases.data = arrays["biases"].reshape(self.biases.shape)
