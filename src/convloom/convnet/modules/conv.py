"""conv and local as modules."""

from __future__ import annotations

import math

import numpy as np

from convloom.convnet.layers import Conv, Extent, Window
from convloom.convnet.modules.base import Piece, Weights, as_maps
from convloom.convnet.modules.connections import Connections
from convloom.nn import Parameter, functional
from convloom.nn import init as initialisers
from convloom.nn.tensor import SymbolicTensor


class ConvPiece(Piece):
    """The sum of every input's convolution, and one bias for a channel or for each of its places.

    The last place may hang over the edge: zeros are added at the bottom and the right for it.
    Groups with ``randSparse`` read channels drawn once, which are kept with the weights.
    """

    def __init__(self, conv: Conv, shared: list[Parameter | None], name: str) -> None:
        super().__init__()
        self.windows = conv.windows
        out = conv.extent(())
        self.places = out.side**2 if conv.unshared else 1
        shapes = [
            (self.places * w.filters * w.groups, w.filter_channels, w.size, w.size)
            for w in conv.windows
        ]
        self.weights = Weights(shapes, conv.initial, shared)
        places = () if conv.shared_biases else (out.side, out.side)
        self.connections = Connections(conv.windows, name)
        bias = initialisers.Constant(conv.initial.bias)
        self.biases = Parameter((out.channels, *places), bias)

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        shared = self.biases.ndim == 1
        y = self._product(0, inputs[0], self.biases if shared else None)
        for i, x in enumerate(inputs[1:], start=1):
            y = y + self._product(i, x, None)
        return y if shared else functional.add_bias(y, self.biases)

    def _product(self, index: int, x: SymbolicTensor, bias: Parameter | None) -> SymbolicTensor:
        window = self.windows[index]
        maps = as_maps(x, Extent.image(window.channels, window.side))
        maps = self.connections(index, maps)
        over = overhang(window)
        if over:
            maps = functional.pad(maps, (0, over, 0, over))
        product = functional.conv2d if self.places == 1 else functional.locally_connected2d
        weight, groups = self.weights[index], window.groups
        return product(maps, weight, bias, window.stride, window.padding, groups=groups)

    def export(self) -> dict[str, np.ndarray]:
        """Matrices of (places · channels · rows · columns of a filter, filters), and a vector."""
        found = {}
        for i, weight in enumerate(self.weights):
            by_place = weight.data.reshape(self.places, -1, math.prod(weight.shape[1:]))
            found[f"weights/{i}"] = by_place.transpose(0, 2, 1).reshape(-1, by_place.shape[1])
        return {**found, **self.connections.export(), "biases": self.biases.data.reshape(-1)}

    def check(self, arrays: dict[str, np.ndarray]) -> None:
        self.connections.check(arrays)

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self.connections.restore(arrays)
        for i, weight in enumerate(self.weights):
            filters = weight.shape[0] // self.places
            by_place = arrays[f"weights/{i}"].reshape(self.places, -1, filters)
            weight.data = by_place.transpose(0, 2, 1).reshape(weight.shape)
        self.biases.data = arrays["biases"].reshape(self.biases.shape)


def overhang(window: Window) -> int:
    """Rows and columns of zeros that the last place needs beyond the padding."""
    needed = (window.modules - 1) * window.stride + window.size
    return max(needed - window.side - 2 * window.padding, 0)
