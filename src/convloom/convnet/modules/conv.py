"""conv and local as modules."""

from __future__ import annotations

import math

import numpy as np

from convloom.convnet.layers import Conv, Extent, Window
from convloom.convnet.modules.base import Shared, WeightedPiece, Weights, as_maps
from convloom.convnet.modules.connections import Connections, channels_of, picking
from convloom.nn import Parameter, functional
from convloom.nn import init as initialisers
from convloom.nn.parameter import Variable
from convloom.nn.tensor import SymbolicTensor


class ConvPiece(WeightedPiece):
    """The sum of every input's convolution, and one bias for a channel or for each of its places.

    The last place may hang over the edge: zeros are added at the bottom and the right for it.
    Groups with ``randSparse`` read channels drawn once, which are kept with the weights.
    """

    def __init__(self, conv: Conv, shared: list[Shared], name: str) -> None:
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

    def keys(self) -> list[str]:
        *weights, biases = super().keys()
        return [*weights, *self.connections.keys(), biases]

    def held(self, key: str) -> Variable:
        return self.connections.held(key) if "connections" in key else super().held(key)

    def shape(self, key: str) -> tuple[int, ...]:
        return self.held(key).shape[:1] if "connections" in key else super().shape(key)

    def matrix_shape(self, weight: Variable) -> tuple[int, ...]:
        """(places · channels · rows · columns of a filter, filters)."""
        return self.places * math.prod(weight.shape[1:]), weight.shape[0] // self.places

    def to_2012(self, key: str, array: np.ndarray) -> np.ndarray:
        if "weights" not in key:
            return array.reshape(-1) if key == "biases" else channels_of(array)
        by_place = array.reshape(self.places, -1, math.prod(array.shape[1:]))
        return by_place.transpose(0, 2, 1).reshape(-1, by_place.shape[1])

    def from_2012(self, key: str, array: np.ndarray) -> np.ndarray:
        own = self.held(key).shape
        if "weights" not in key:
            return array.reshape(own) if key == "biases" else picking(array.reshape(-1), own[1])
        by_place = array.reshape(self.places, -1, own[0] // self.places)
        return by_place.transpose(0, 2, 1).reshape(own)

    def check(self, arrays: dict[str, np.ndarray]) -> None:
        for key in self.connections.keys():  # noqa: SIM118 - it is a module
            picking(arrays[key].reshape(-1), self.held(key).shape[1])


def overhang(window: Window) -> int:
    """Rows and columns of zeros that the last place needs beyond the padding."""
    needed = (window.modules - 1) * window.stride + window.size
    return max(needed - window.side - 2 * window.padding, 0)
