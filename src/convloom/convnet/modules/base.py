"""What the modules of a network file share: maps and vectors of what flows between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convloom.convnet.layers import Extent, Initial
from convloom.nn import Module, Parameter
from convloom.nn import init as initialisers
from convloom.nn.layers.base import Layer
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


class Weights(Module):
    """The matrices of a layer, one an input, named 0, 1, …; a shared one stands at its owner."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        initial: Initial,
        shared: Sequence[Parameter | None] = (),
    ) -> None:
        super().__init__()
        self._order: list[Parameter] = []
        for i, (shape, deviation) in enumerate(zip(shapes, initial.weights, strict=True)):
            source = shared[i] if shared else None
            parameter = source or Parameter(shape, initialisers.Normal(deviation))
            self._order.append(parameter)
            if source is None:
                self.register_parameter(str(i), parameter)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Parameter:
        return self._order[index]


def as_maps(x: SymbolicTensor, extent: Extent) -> SymbolicTensor:
    """A tensor as the square maps that its reader takes it for."""
    shape = (extent.channels, extent.side, extent.side)
    return x if x.shape[1:] == shape else as_vector(x).reshape(-1, *shape)


def as_vector(x: SymbolicTensor) -> SymbolicTensor:
    """A tensor as one row a case, in the order channels, rows, columns."""
    return x if x.ndim == 2 else x.flatten(1)
