"""The kernels of a chain in float32: maps in planes of one channel, tiles of a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from convloom.backends.cuda.launch import Constant
from convloom.backends.cuda.onchip import strips
from convloom.backends.cuda.onchip.config import PLAIN, Config
from convloom.backends.cuda.onchip.memory import (
    Grid,
    ImageMemory,
    Map,
    Regions,
    dilated_grid,
    padded_grid,
)
from convloom.backends.cuda.onchip.operand import BFLOAT16, Operand
from convloom.backends.cuda.onchip.plan import GRADIENTS, OnChip
from convloom.backends.cuda.onchip.stages import ConvStage, LinearStage, Stages, UnfitError
from convloom.backends.cuda.onchip.tiling import Tile
from convloom.backends.selecting import ceil_div
from convloom.ops.precision import FP32

#: Registers of a thread for sums: of one tile, and of filters' gradients.
_PASSING, _LASTING = 64, 96
#: Warps that a multiprocessor lets go on at once.
_SCHEDULERS = 4
#: The most parts that an output's features are split into.
_PARTS = 8


@dataclass(frozen=True)
class PixelTile:
    """What a thread takes at once: rows and columns of pixels, and filters."""

    rows: int
    cols: int
    filters: int


@dataclass(frozen=True)
class Exact(OnChip):
    """The float32 form of ``OnChip``."""

    channels_first: bool = True

    @classmethod
    def best(
        cls,
        stages: Stages,
        mode: int,
        limit: int,
        operand: Operand = BFLOAT16,
        config: Config = PLAIN,
    ) -> OnChip:
        """With gradients in memory of their own, if they fit there; operands have no format."""
        plain = replace(stages, linears=tuple(_plain(linear) for linear in stages.linears))
        first = bool(stages.linears[0].row)
        roomy = cls(plain, mode, limit, replace(config, split=1), channels_first=first)
        one = roomy if roomy.fits else replace(roomy, in_place=True)
        return one.shared_by(config.split)

    @cached_property
    def memory(self) -> ImageMemory:
        return _Placement(
            self.stages, self.mode == GRADIENTS, self.in_place, self.channels_first
        ).place()

    @cached_property
    def pixel_tiles(self) -> list[tuple[PixelTile, PixelTile]]:
        """Of each convolution: for its output, for the gradient of its input."""
        tiles, wide = [], self.config.wide
        for i, conv in enumerate(self.stages.convs):
            height, width = conv.size
            made = (self._made(i), conv.handed_on[1])
            if i:
                height = strips.most_handed_on(self.stages, i - 1, self.config.split)
            tiles.append(
                (
                    _tile(made, conv.filters, conv, conv.stride, conv.pool, wide),
                    _tile((height, width), conv.channels, conv, (1, 1), False, wide),
                )
            )
        return tiles

    @cached_property
    def wgrad_tiles(self) -> list[Tile]:
        config = self.config
        tiles = [
            _wgrad_tile(conv, strips.most_products(self.stages, i, config.split), config.threads)
            for i, conv in enumerate(self.stages.convs)
        ]
        if self.mode == GRADIENTS and sum(tile.registers for tile in tiles) > _LASTING:
            raise UnfitError("the gradients of all filters do not fit in a block's registers")
        return tiles

    @cached_property
    def fixed(self) -> Regions:
        regions = Regions()
        for i, conv in enumerate(self.stages.convs):
            taps = conv.kernel[0] * conv.kernel[1] * 4
            regions.take(f"weights {i + 1}", conv.channels * taps * _padded(conv.filters))
            if i > 0 and self.mode == GRADIENTS:
                nbytes = conv.filters * taps * _padded(conv.channels)
                regions.take(f"weights {i + 1}, transposed", nbytes)
        most = max(linear.outputs for linear in self.stages.linears)
        regions.take("sums", most * _PARTS * 4)
        if self.config.early:
            regions.take("biases", 4 * sum(self._biases()))
        return regions

    @cached_property
    def slabs(self) -> list[int]:
        if self.mode != GRADIENTS:
            return [0 for _ in self.stages.convs]
        return [
            conv.filters * (conv.channels * conv.kernel[0] * conv.kernel[1] + 1)
            for conv in self.stages.convs
        ]

    @property
    def precision(self) -> str:
        return FP32

    @property
    def streamed(self) -> list[int]:
        return []

    @property
    def element(self) -> int:
        return 4

    @property
    def pack_threads(self) -> int:
        return self.resident // 4

    def _reduce_groups(self, n: int) -> int:
        return 1

    @property
    def reduce_rows(self) -> list[int]:
        return [1 for _ in self.stages.linears]

    def constants(self, row: bool) -> dict[str, Constant]:
        convs = self.stages.convs
        tiles = self.pixel_tiles
        known: dict[str, Constant] = dict(super().constants(row))
        known |= {"EXACT": 1, "CHANNELS_FIRST": int(self.channels_first)}
        known |= {"UNROLL": self.config.unroll}
        steps = [1 for _ in convs[1:]]
        if convs:
            steps.append(1 if self.channels_first else convs[-1].filters)
            known |= {
                "CONV_ZCOL": tuple(steps),
                "CONV_TR": tuple(tile.rows for tile, _ in tiles),
                "CONV_TC": tuple(tile.cols for tile, _ in tiles),
                "CONV_TK": tuple(tile.filters for tile, _ in tiles),
                "CONV_DTR": tuple(tile.rows for _, tile in tiles),
                "CONV_DTC": tuple(tile.cols for _, tile in tiles),
                "CONV_DTK": tuple(tile.filters for _, tile in tiles),
            }
        return known


def _plain(linear: LinearStage) -> LinearStage:
    """A layer whose features lie as in a row of its weight."""
    return replace(linear, channels=linear.channels * linear.pixels, pixels=1, row=True)


def _padded(filters: int) -> int:
    return ceil_div(filters, 4) * 4


def _spread(plane: int, pitch: int) -> int:
    """At least ``plane`` floats, so that three rows of neighbouring planes lie in other banks."""

    def clashes(size: int) -> int:
        places = [(lane % 3 * pitch + lane // 3 * size) // 4 % 8 for lane in range(24)]
        return sum(8 - len(set(places[at : at + 8])) for at in (0, 8, 16))

    return min(range(plane, plane + 32, 4), key=lambda size: (clashes(size), size))


def _wgrad_tile(conv: ConvStage, rows: int, threads: int) -> Tile:
    """Filters of a thread, and threads that share rows: what takes least time."""
    best, least = Tile(4, 1), float("inf")
    for filters in (4, 8):
        units = ceil_div(conv.filters, filters) * conv.channels * conv.kernel[0]
        split = max(1, min(threads // units, rows))
        each = ceil_div(units * split, threads)
        work, reads = filters * conv.kernel[1], 12 + 1.5 * filters
        cost = each * ceil_div(rows, split) * (max(work, reads) + min(work, reads) / 2)
        if cost < least:
            registers = each * filters * (conv.kernel[1] + 1)
            best, least = Tile(filters, 1, split, registers), cost
    return best


def _tile(
    size: tuple[int, int],
    outputs: int,
    conv: ConvStage,
    stride: tuple[int, int],
    pool: bool,
    wide: bool,
) -> PixelTile:
    """The tile that takes least time, bound by multiply-adds or by reads of shared memory."""
    r, s = conv.kernel
    height, width = (size[0] * 2, size[1] * 2) if pool else size
    best, least = PixelTile(1 + pool, 1 + pool, 4), float("inf")
    for rows, cols, filters in product((1, 2), (1, 2, 4, 6) if wide else (1, 2, 4), (4, 8)):
        if rows * cols * filters > _PASSING or (pool and (rows, cols % 2) != (2, 0)):
            continue
        tiles = ceil_div(height, rows) * ceil_div(width, cols) * ceil_div(outputs, filters)
        row = (cols - 1) * stride[1] + s
        # Of a warp and channel: multiply-adds; and reads, each of 128 bytes, of all warps in turn.
        work = rows * cols * filters * r * s
        reads = ((rows - 1) * stride[0] + r) * row * 1.2 + r * s * rows * filters / 4 * 1.5
        warps = ceil_div(tiles, 32)
        busy = ceil_div(warps, _SCHEDULERS) * work, warps * reads
        cost = max(busy) + min(busy) / 2
        if cost < least:
            best, least = PixelTile(rows, cols, filters), cost
    return best


@dataclass
class _Placement:
    """Places the maps of one image; compare memory.py."""

    stages: Stages
    gradients: bool
    in_place: bool
    channels_first: bool

    def place(self) -> ImageMemory:
        convs, linears = self.stages.convs, self.stages.linears
        regions = Regions()
        maps, input_bytes, pitches = [], 0, [16]
        for i, conv in enumerate(convs):
            grid = padded_grid(conv)
            if self._in_place(i - 1):
                grid = grid.around(self._dilated(i - 1))
            taken, size = self._planes(
                regions, f"input {i + 1}" if i else "input", grid, conv.channels, 2 if not i else 1
            )
            input_bytes = size if not i else input_bytes
            maps.append(taken)
        features = [
            regions.take(f"hidden {j}" if j else "features", 4 * linear.width)
            for j, linear in enumerate(linears)
        ]
        dy, code, rows = [], [], []
        for i, conv in enumerate(convs if self.gradients else ()):
            if self._in_place(i):
                dy.append(maps[i + 1])
            else:
                name = f"gradient {i + 1}"
                dy.append(self._planes(regions, name, self._dilated(i), conv.filters, 1)[0])
            height, width = conv.handed_on
            size = conv.filters * height * width if conv.pool else 0
            code.append(regions.take(f"winners {i + 1}", size) if size else 0)
        if self.gradients:
            rows = [
                regions.take(f"gradient of outputs {j + 1}", 4 * linear.out)
                for j, linear in enumerate(linears)
            ]
        pitches += [one.pitch for one in (*maps, *dy)]
        regions.take("slack of tiles", 4 * 10 * max(pitches))
        none = len(convs) * [Map()]
        return ImageMemory(
            gather=True,
            input_bytes=input_bytes,
            x=tuple(maps),
            dy=tuple(dy or none),
            z=(*maps[1:], *self._dense(features[0])),
            in_place=tuple(self._in_place(i - 1) for i in range(len(convs))),
            code=tuple(code or len(convs) * [0]),
            features=tuple(features),
            gradients=tuple(rows or len(linears) * [0]),
            regions=regions,
        )

    def _dense(self, base: int) -> list[Map]:
        """The features, as the first matrix has them."""
        if not self.stages.convs:
            return []
        last = self.stages.convs[-1]
        height, width = last.handed_on
        if self.channels_first:
            return [Map(base, width, height * width)]
        return [Map(base, width * last.filters, 1)]

    def _in_place(self, i: int) -> bool:
        convs = self.stages.convs
        if i < 0 or not (self.gradients and self.in_place) or i + 1 >= len(convs):
            return False
        return not convs[i].pool and convs[i].stride == (1, 1)

    def _dilated(self, i: int) -> Grid:
        """With as many zeros behind a row that it can be read four at a time."""
        conv, grid = self.stages.convs[i], dilated_grid(self.stages, i)
        end = (ceil_div(conv.out[1], 4) * 4 - 1) * conv.stride[1] + 4
        return replace(grid, right=max(grid.right, end - grid.width))

    @staticmethod
    def _planes(
        regions: Regions, name: str, grid: Grid, channels: int, buffers: int
    ) -> tuple[Map, int]:
        """A map whose rows begin at multiples of four floats, and the bytes of a buffer."""
        pitch = _padded(grid.pitch)
        lead = grid.top * pitch + _padded(max(grid.left, 1))
        plane = _spread(_padded(lead + (grid.height + grid.bottom) * pitch + grid.right), pitch)
        size = ceil_div(4 * channels * plane, 128) * 128
        start = regions.take(name, buffers * size)
        return Map(start + 4 * lead, pitch, plane), size
