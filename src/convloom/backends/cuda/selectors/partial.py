"""Filter gradients in chunks of the batch: partial sums in the workspace, then their sum."""

from __future__ import annotations

from convloom.backends.cuda.launch import Argument, Tensor, Workspace
from convloom.backends.cuda.selectors.common import ABSENT, Builder, ceil_div, channels_last
from convloom.backends.cuda.selectors.tiles import BLOCKS, chunks
from convloom.ir import Node

#: Chunks of the naive and the fused rung.
_CHUNKS = 16
#: Elements that a block of sum_partials adds up, and its threads.
_SUMMED, _THREADS = 32, 256


class SampleChunks:
    """The naive and the fused rung: each of a few chunks of the samples makes its own sums.

    Attributes:
        outputs: what takes the place of the first and the second output.
        samples: of a chunk.
        count: chunks.
        stride: elements between the partial sums of neighbouring chunks.
    """

    def __init__(self, build: Builder, outputs: tuple[str, ...], samples: int) -> None:
        """Split ``samples`` for gradients of one or two ``outputs``."""
        self._build, self._names = build, outputs
        sizes = [build.specs[name].size for name in outputs]
        self.stride = sum(sizes)
        self.samples = max(ceil_div(samples, _CHUNKS), 1)
        self.count = max(ceil_div(samples, self.samples), 1)
        self.outputs: tuple[Argument, Argument] = (
            Tensor(outputs[0]),
            Tensor(outputs[1]) if len(outputs) > 1 else ABSENT,
        )
        if self.count > 1:
            first = build.workspace(4 * self.stride * self.count)
            self.outputs = (first, Workspace(first.offset + 4 * sizes[0]))

    def add_up(self) -> None:
        """Append the sum of the chunks, where the outputs are not written yet."""
        if self.count == 1:
            return
        targets = [Tensor(name) for name in self._names]
        sizes = [self._build.specs[name].size for name in self._names]
        second = targets[1] if len(targets) > 1 else ABSENT
        constants = {"FIRST": sizes[0], "SECOND": sum(sizes[1:])}
        arguments = (self.outputs[0], targets[0], second, self.count)
        self._build.each("sum_partials/naive", constants, arguments, self.stride)


class PartialSums:
    """Where a gradient kernel writes the gradients of filters and bias, chunk by chunk.

    One chunk writes the node's outputs themselves. Several write partial sums: filters in KRSC
    order, then the bias; ``add_up`` appends the launch that makes the outputs of them.

    Attributes:
        outputs: what takes the place of dw and db.
        length: terms of a chunk's sum.
        count: chunks.
        stride: elements between the partial sums of neighbouring chunks.
    """

    def __init__(
        self,
        build: Builder,
        node: Node,
        shape: tuple[int, int, int, int],
        tiles: int,
        depth: int,
        has_bias: bool,
        least: int = 64,
        blocks: int = BLOCKS,
    ) -> None:
        """Split a sum of ``depth`` terms that ``tiles`` blocks make at once.

        Args:
            shape: filters, channels, rows and columns of dw, the first output of ``node``.
            has_bias: whether the second output is db.
            least: terms below which a chunk is not worth its partial sums.
            blocks: that there should be.
        """
        self._build, self._shape = build, shape
        k, c, r, s = shape
        self._dw, self._db = node.outputs[0], node.outputs[1] if has_bias else None
        size = k * c * r * s
        self.stride = ceil_div(size + (k if self._db else 0), 4) * 4
        self.length, self.count = chunks(depth, tiles, 4 * self.stride, least, blocks)
        dw = build.specs[self._dw]
        self._reordered = not channels_last(dw) and len(dw.shape) == 4 and r * s > 1 and c > 1
        self.outputs: tuple[Argument, Argument] = (
            Tensor(self._dw),
            Tensor(self._db) if self._db else ABSENT,
        )
        self._place: Workspace | None = None
        if self.count > 1 or self._reordered:
            self._place = build.workspace(4 * self.stride * self.count)
            db = Workspace(self._place.offset + 4 * size) if self._db else ABSENT
            self.outputs = (self._place, db)

    def add_up(self) -> None:
        """Append the sum of the chunks, where the outputs are not written yet."""
        if self._place is None:
            return
        k, c, r, s = self._shape
        constants = {"K": k, "C": c, "R": r, "S": s}
        constants |= {"BIAS": int(self._db is not None), "WROW": int(self._reordered)}
        db = Tensor(self._db) if self._db else ABSENT
        sum_partials(self._build, constants, self._place, Tensor(self._dw), db, self.count)


def sum_partials(
    build: Builder,
    constants: dict[str, int],
    partial: Workspace,
    dw: Argument,
    db: Argument,
    count: int,
) -> None:
    """Append the launch that adds up ``count`` chunks of partial sums, in order."""
    k, depth = constants["K"], constants["C"] * constants["R"] * constants["S"]
    size = k * depth + (k if constants["BIAS"] else 0)
    blocks = ceil_div(size, _SUMMED)
    build.add("sum_partials/tiled", constants, (partial, dw, db, count), blocks, _THREADS)
