"""randSparse: which channels each group of filters reads, drawn once and kept for life."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convloom import random
from convloom.convnet.layers import Window
from convloom.nn import Module
from convloom.nn.parameter import Buffer, WeightsError
from convloom.nn.tensor import SymbolicTensor
from convloom.ops import Conv2d

_STREAM = "convnet-connections"


class Connections(Module):
    """The channels of every input with random connections, as filters of 1x1 that pick them.

    They lie in buffers, so that checkpoints hold them: input i has (groups * filter channels, C,
    1, 1), a 1 in each row. A filter that picks is a product with 0 for all other channels.

    Args:
        layer: its name, by which layers draw other channels than their neighbours.
    """

    def __init__(self, windows: Sequence[Window], layer: str) -> None:
        super().__init__()
        self._channels = {i: w.channels for i, w in enumerate(windows) if w.sparse}
        for i, window in enumerate(windows):
            if window.sparse:
                self.register_buffer(
                    str(i), picking(drawn(window, f"{_STREAM}:{layer}:{i}"), window.channels)
                )

    def forward(self, index: int, x: SymbolicTensor) -> SymbolicTensor:
        """The channels that the filters of an input read, group by group."""
        if index not in self._channels:
            return x
        return x.tracer.apply(Conv2d(), x, self._buffer(index), function="connections")

    def keys(self) -> list[str]:
        """``connections/0`` for every input that has some."""
        return [f"connections/{i}" for i in self._channels]

    def held(self, key: str) -> Buffer:
        """The filters of an input, by its key."""
        return self._buffer(int(key.rpartition("/")[2]))

    def _buffer(self, index: int) -> Buffer:
        buffer = self._buffers[str(index)]
        assert isinstance(buffer, Buffer)
        return buffer


def drawn(window: Window, stream: str) -> np.ndarray:
    """Random permutations of all channels one behind the other, cut into the groups' channels."""
    count = window.groups * window.filter_channels
    orders = [
        random.permutation(0, stream, turn, window.channels)
        for turn in range(count // window.channels)
    ]
    return np.concatenate(orders)


def picking(channels: np.ndarray, count: int) -> np.ndarray:
    """Filters of 1x1 over ``count`` channels, each with a 1 at its channel.

    Raises:
        WeightsError: channels that are not there.
    """
    if channels.dtype.kind not in "iu" or channels.min() < 0 or channels.max() >= count:
        raise WeightsError(f"connections must be numbers of {count} channels")
    rows: np.ndarray = np.eye(count, dtype=np.float32)[channels]
    return rows[:, :, None, None]


def channels_of(filters: np.ndarray) -> np.ndarray:
    """The channels that filters of 1x1 pick, the inverse of ``picking``.

    Raises:
        WeightsError: filters that do not pick one channel each.
    """
    rows = filters.reshape(len(filters), -1)
    chosen: np.ndarray = rows.argmax(axis=1)
    if not np.array_equal(rows, np.eye(rows.shape[1])[chosen]):
        raise WeightsError("connections must pick one channel each")
    return chosen
