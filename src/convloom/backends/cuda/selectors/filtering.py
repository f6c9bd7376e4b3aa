"""Filter gradients by minimal filtering: kernels/cuda/conv2d_wgrad/winograd.cu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convloom.backends.cuda.launch import Argument
from convloom.backends.cuda.selectors.common import Builder, ceil_div
from convloom.backends.cuda.selectors.config import chosen
from convloom.backends.cuda.selectors.partial import PartialSums
from convloom.backends.cuda.selectors.tiles import output_windows, plain_3x3
from convloom.ir import Node

#: Filters and channels of a block, its threads, and windows that it takes at a time.
_FILTERS, _CHANNELS, _THREADS, _WINDOWS = 32, 16, 128, 16
#: The fewest windows that are worth a block, and the most blocks: what an H200 runs at once.
_LEAST, _BLOCKS = 128, 4 * 132
#: Bytes of shared memory: windows of 16 positions, and sums of the bias.
_SHARED = 4 * (16 * (_WINDOWS * (_FILTERS + _CHANNELS) + 8) + _WINDOWS * _FILTERS)


@dataclass(frozen=True)
class Filtering:
    """A filter gradient that the kernel serves.

    Attributes:
        constants: of device/conv.cuh, BIAS, and POOL: whether a 2x2 max-pool followed.
        samples: of the batch.
    """

    constants: Mapping[str, int]
    samples: int

    @classmethod
    def of(cls, constants: Mapping[str, int], samples: int) -> Filtering | None:
        """None unless filters are 3x3, of stride 1, fill blocks, and all lies channels last."""
        full = constants["K"] % _FILTERS == 0 and constants["C"] % _CHANNELS == 0
        made = cls(constants, samples)
        # The kernel counts the elements of up to 17 images in 32 bits.
        largest = max(
            constants["C"] * constants["H"] * constants["W"],
            constants["K"] * constants["OH"] * constants["OW"],
        )
        served = plain_3x3(constants) and full and 17 * largest < 2**31
        return made if served and made.windows else None

    @property
    def windows(self) -> int:
        """Of the batch; without a pool the last ones of a map may overhang it."""
        return self.samples * output_windows(self.constants)

    @property
    def wanted(self) -> bool:
        """Whether there are windows for blocks enough."""
        return self._tiles * ceil_div(self.windows, _LEAST) >= chosen().wino_wgrad

    @property
    def _tiles(self) -> int:
        return self.constants["K"] // _FILTERS * (self.constants["C"] // _CHANNELS)

    def split(self, build: Builder, node: Node) -> PartialSums:
        """The chunks of the windows, for the kernel to be taken."""
        shape, has_bias = (self.constants["K"], self.constants["C"], 3, 3), self.constants["BIAS"]
        blocks = max(_BLOCKS // self._tiles, 1) * self._tiles
        return PartialSums(
            build, node, shape, self._tiles, self.windows, bool(has_bias), _LEAST, blocks
        )

    def add(
        self, build: Builder, inputs: tuple[Argument, Argument, Argument], split: PartialSums
    ) -> None:
        """Append the launch, of x, dy and the pool's index."""
        arguments = (*inputs, *split.outputs, self.samples, split.length, split.stride)
        blocks = self._tiles * split.count
        source = "conv2d_wgrad/winograd"
        constants = {**self.constants, "UNROLLED": chosen().wino_unrolled}
        build.add(source, constants, arguments, blocks, _THREADS, _SHARED)
