"""What the modules of a network file share: maps and vectors of what flows between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from convloom.convnet.layers import Extent, Initial
from convloom.nn import Module, Parameter
from convloom.nn import init as initialisers
from convloom.nn.layers.base import Layer
from convloom.nn.parameter import Variable
from convloom.nn.tensor import SymbolicTensor


class Piece(Layer):
    """A layer of a network file, named by its section; ``forward`` stops before its neuron."""

    def export(self) -> dict[str, np.ndarray]:
        """{``weights/0``: matrix, ``biases``: vector} in the layouts of 2012; most have none."""
        return {}

    def check(self, arrays: dict[str, np.ndarray]) -> None:
        """Raises WeightsError for arrays of the right sizes that ``restore`` cannot take."""

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take what ``export`` gives."""


#: Whose weights an input takes: another layer's, those of an input before it, or (None) its own.
Shared = Parameter | int | None


class Weights(Module):
    """The matrices of a layer, one an input, named 0, 1, …; a shared one stands at its owner."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        initial: Initial,
        shared: Sequence[Shared] = (),
    ) -> None:
        super().__init__()
        self._order: list[Parameter] = []
        for i, (shape, deviation) in enumerate(zip(shapes, initial.weights, strict=True)):
            source = shared[i] if shared else None
            if isinstance(source, int):
                source = self._order[source]
            parameter = source or Parameter(shape, initialisers.Normal(deviation))
            self._order.append(parameter)
            if source is None:
                self.register_parameter(str(i), parameter)

    def owns(self, index: int) -> bool:
        """Whether a matrix is the layer's own."""
        return str(index) in self._parameters

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Parameter:
        return self._order[index]


class WeightedPiece(Piece):
    """A layer with a matrix for each input and biases.

    Its arrays go by keys, ``weights/0``, ``biases`` and so on. Each has two layouts: that of 2012,
    in which it comes and goes, and our own.
    """

    weights: Weights
    biases: Parameter

    def keys(self) -> list[str]:
        """What the layer has, whoever owns it."""
        return [*(f"weights/{i}" for i in range(len(self.weights))), "biases"]

    def own_keys(self) -> list[str]:
        """What the layer has but for weights that another layer owns."""
        return [key for key in self.keys() if self.owns(key)]

    def owns(self, key: str) -> bool:
        """Whether an array is the layer's own."""
        kind, _, number = key.partition("/")
        return kind != "weights" or self.weights.owns(int(number))

    def held(self, key: str) -> Variable:
        """Where an array lives, in our own layout."""
        kind, _, number = key.partition("/")
        return self.biases if kind == "biases" else self.weights[int(number)]

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of an array in the layout of 2012."""
        return (self.biases.numel(),) if key == "biases" else self.matrix_shape(self.held(key))

    @abstractmethod
    def matrix_shape(self, weight: Variable) -> tuple[int, ...]:
        """The shape of a matrix in the layout of 2012: a column for each filter or output."""

    @abstractmethod
    def to_2012(self, key: str, array: np.ndarray) -> np.ndarray:
        """An array of our own layout in that of 2012."""

    @abstractmethod
    def from_2012(self, key: str, array: np.ndarray) -> np.ndarray:
        """The inverse of ``to_2012``."""

    def export(self) -> dict[str, np.ndarray]:
        return {key: self.to_2012(key, self.held(key).data) for key in self.keys()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        for key in self.keys():
            self.take(key, arrays[key])

    def take(self, key: str, array: np.ndarray) -> None:
        """Take one array in the layout of 2012.

        Raises:
            WeightsError: values that it cannot have.
        """
        self.held(key).data = self.from_2012(key, array)


def as_maps(x: SymbolicTensor, extent: Extent) -> SymbolicTensor:
    """A tensor as the square maps that its reader takes it for."""
    shape = (extent.channels, extent.side, extent.side)
    return x if x.shape[1:] == shape else as_vector(x).reshape(-1, *shape)


def as_vector(x: SymbolicTensor) -> SymbolicTensor:
    """A tensor as one row a case, in the order channels, rows, columns."""
    return x if x.ndim == 2 else x.flatten(1)
