"""randSparse: which channels each group of filters reads, drawn once and kept for life."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

    def export(self) -> dict[str, np.ndarray]:
        """{``connections/0``: channel numbers, group by group}."""
        return {
            f"connections/{i}": self._buffer(i).data.reshape(-1, channels).argmax(axis=1)
            for i, channels in self._channels.items()
        }

    def check(self, arrays: dict[str, np.ndarray]) -> None:
        """Raises WeightsError for channels that are not there."""
        for i, channels in self._channels.items():
            chosen = arrays[f"connections/{i}"]
            if chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= channels:
                raise WeightsError(f"connections/{i} must be numbers of {channels} channels")

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take channel numbers."""
        for i, channels in self._channels.items():
            chosen = arrays[f"connections/{i}"].reshape(-1)
            self._buffer(i).data = picking(chosen, channels)

    def _buffer(self, index: int) -> Any:
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
    """Filters of 1x1 over ``count`` channels, each with a 1 at its channel."""
    rows: np.ndarray = np.eye(count, dtype=np.float32)[channels]
    return rows[:, :, None, None]
