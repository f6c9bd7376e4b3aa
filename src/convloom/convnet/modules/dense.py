"""fc as a module, and what it shares with treefc."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convloom.convnet.layers import Extent, Fc, Initial
from convloom.convnet.modules.base import Shared, WeightedPiece, Weights, as_vector
from convloom.nn import Parameter, functional
from convloom.nn import init as initialisers
from convloom.nn.parameter import Variable
from convloom.nn.tensor import SymbolicTensor


class DensePiece(WeightedPiece):
    """Matrices of (outputs, inputs), and one bias a class."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        classes: int,
        initial: Initial,
        shared: Sequence[Shared] = (),
    ) -> None:
        super().__init__()
        self.weights = Weights(shapes, initial, shared)
        self.biases = Parameter((classes,), initialisers.Constant(initial.bias))

    def matrix_shape(self, weight: Variable) -> tuple[int, ...]:
        return weight.shape[::-1]

    def to_2012(self, key: str, array: np.ndarray) -> np.ndarray:
        return array if key == "biases" else array.T.copy()

    def from_2012(self, key: str, array: np.ndarray) -> np.ndarray:
        flat = array.reshape(self.shape(key))
        return flat if key == "biases" else flat.T


class FcPiece(DensePiece):
    """The sum of every input's product with a matrix of its own, and one bias."""

    def __init__(self, fc: Fc, inputs: tuple[Extent, ...], shared: list[Shared]) -> None:
        shapes = [(fc.outputs, extent.count) for extent in inputs]
        super().__init__(shapes, fc.outputs, fc.initial, shared)

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        y = functional.linear(as_vector(inputs[0]), self.weights[0], self.biases)
        for x, weight in zip(inputs[1:], list(self.weights)[1:], strict=True):
            y = y + functional.linear(as_vector(x), weight)
        return y
