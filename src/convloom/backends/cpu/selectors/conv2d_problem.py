"""A convolution as its CPU kernels see it, and the cost model that shapes their register tiles.

The model counts issue slots of one reduction step of a tile of 16-lane vectors, the same on every
machine: a kernel adapts a tile to narrower vectors by itself (kernels/cpu/conv2d_core.h).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from convloom.backends.cpu.launch import Specialisation
from convloom.ir import NHWC, ROW_MAJOR, Layout, TensorSpec
from convloom.ops.conv2d import ConvGeometry

#: Vectors of the widest target: tiles are chosen for these.
LANES = 16
#: Bytes of staged input that an item may keep in a core's second-level cache.
STAGED_BYTES = 192 * 1024
#: Most chunks of a reduction.
CHUNKS = 16
#: Items that a step should have at least, so that a batch of one still uses all cores.
ITEMS = 16
#: Output pixels over which a filter gradient's tile stays in registers: dy then fits in L1.
PIXELS = 128
#: Pixels this many floats apart (or a multiple of it) share few sets of the first-level cache.
CONFLICT = 256
#: The address of a tensor that is not there.
ABSENT = 0

_REGISTERS = 32


def channels_last(layout: Layout) -> bool:
    """Whether axis 1 of a rank-4 tensor is innermost in memory (NHWC, and KRSC for filters)."""
    return (layout.order, layout.view) == (NHWC.order, None)


def served(spec: TensorSpec) -> bool:
    """Whether the kernels know this memory order."""
    row_major = spec.layout.order == ROW_MAJOR.order
    return row_major or (len(spec.shape) == 4 and channels_last(spec.layout))


@dataclass(frozen=True)
class Problem:
    """Sizes and memory order of a convolution: ``c`` channels a group, ``k`` filters in all."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    geometry: ConvGeometry
    x_layout: Layout
    y_layout: Layout
    w_layout: Layout

    @property
    def groups(self) -> int:
        return self.geometry.groups

    @property
    def kg(self) -> int:
        """Filters of one group."""
        return self.k // self.groups

    @property
    def channels(self) -> int:
        """Channels of the whole input."""
        return self.c * self.groups

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of the output, before any pool."""
        return self.geometry.window((self.r, self.s)).output((self.h, self.w))

    @property
    def planar_x(self) -> bool:
        """Whether x is NCHW in memory (with one channel both orders are the same)."""
        return not channels_last(self.x_layout) and self.channels > 1

    @property
    def planar_y(self) -> bool:
        """Whether y is NCHW in memory."""
        return not channels_last(self.y_layout) and self.k > 1

    @property
    def padded(self) -> bool:
        return self.geometry.padding != (0, 0)

    @property
    def depth(self) -> int:
        """Products in the sum of one output."""
        return self.c * self.r * self.s

    @property
    def filter_size(self) -> int:
        """Elements of the filter tensor."""
        return self.k * self.depth

    @property
    def flops(self) -> int:
        """Of one image."""
        p, q = self.out
        return 2 * p * q * self.k * self.depth

    @property
    def adjacent(self) -> bool:
        """Whether neighbouring taps of a row are neighbours in NHWC memory of one group."""
        return self.geometry.dilation[1] == 1

    @property
    def w_strides(self) -> dict[str, int]:
        """Strides of the filter tensor by letter: K, C, R, S."""
        if channels_last(self.w_layout):
            return {"C": 1, "S": self.c, "R": self.c * self.s, "K": self.depth}
        return {"S": 1, "R": self.s, "C": self.r * self.s, "K": self.depth}

    @property
    def constants(self) -> dict[str, int]:
        """The geometry as compile-time constants. Never the batch; image sizes are arguments."""
        (uh, uw), (dh, dw), (ph, pw) = (
            self.geometry.stride,
            self.geometry.dilation,
            self.geometry.padding,
        )
        return {
            **{"C": self.c, "G": self.groups, "K": self.k, "R": self.r, "S": self.s},
            **{"UH": uh, "UW": uw, "DH": dh, "DW": dw, "PH": ph, "PW": pw},
            **{"XROW": int(self.planar_x), "YROW": int(self.planar_y)},
        }

    @property
    def pointwise(self) -> bool:
        """Whether the convolution is one matrix product over all pixels."""
        return (
            (self.r, self.s, self.groups) == (1, 1, 1)
            and self.geometry.stride == (1, 1)
            and not (self.padded or self.planar_x or self.planar_y)
        )

    @property
    def many_groups(self) -> bool:
        """Whether groups are too small to fill vectors: the kernels conv2d_lanes_* serve these."""
        return self.groups > 1 and self.c <= 8 and self.kg <= 8

    def canonical(self) -> Problem:
        """A convolution whose kernel is its whole input becomes a 1x1 one over the batch."""
        covers = self.out == (1, 1) and (self.r, self.s) == (self.h, self.w) and not self.padded
        if not covers or self.groups > 1 or self.geometry.dilation != (1, 1):
            return self
        if (self.r, self.s) == (1, 1) or self.planar_x or not channels_last(self.w_layout):
            return self
        return replace(
            self, n=1, h=self.n, w=1, c=self.depth, r=1, s=1, geometry=ConvGeometry(), y_layout=NHWC
        )


def specialise(source: str, *constants: Mapping[str, int], **more: int) -> Specialisation:
    """A kernel with its constants, in one order so that equal ones compile once."""
    merged = {name: value for group in (*constants, more) for name, value in group.items()}
    return Specialisation(source, tuple(sorted(merged.items())))


def strip_count(problem: Problem, units: int, least: int, row_bytes: int) -> int:
    """Strips of an image: staged rows fit the cache, and few images still make many items.

    Args:
        units: rows that are cut into strips; each strip gets at least ``least``.
        row_bytes: staged bytes of one row.
    """
    by_cache = math.ceil(units * row_bytes / STAGED_BYTES)
    by_items = min(math.ceil(ITEMS / problem.n), math.ceil(problem.flops / 2_000_000))
    return max(1, min(max(by_cache, by_items), units // least))


def problem_of(conv: ConvGeometry, x: TensorSpec, w: TensorSpec, y: TensorSpec) -> Problem:
    """The problem of a convolution of ``x`` with ``w`` giving ``y`` (only its layout is used)."""
    n, _, height, width = x.shape
    k, c, r, s = w.shape
    geometry = ConvGeometry(conv.stride, conv.padding, conv.dilation, conv.groups)
    return Problem(n, c, height, width, k, r, s, geometry, x.layout, y.layout, w.layout)


@dataclass(frozen=True)
class Residues:
    """One axis of an input gradient: the reach of its taps (kernels/cpu/conv2d_dgrad.cpp)."""

    low: int
    high: int


@cache
def residues(taps: int, stride: int, padding: int, dilation: int) -> Residues:
    """The lowest and highest offset that a tap of any residue class adds to a position."""
    low, high = 1 << 30, -(1 << 30)
    common = math.gcd(stride, dilation)
    step, spread = stride // common, dilation // common
    for residue in range(stride):
        seen = [r for r in range(0, min(taps, step)) if r * dilation % stride == residue]
        if not seen:
            continue
        count = (taps - 1 - seen[0]) // step + 1
        first = (residue - padding) % stride
        last = (first + padding - seen[0] * dilation) // stride
        low, high = min(low, last - (count - 1) * spread), max(high, last)
    return Residues(low, high)


@dataclass(frozen=True)
class Tile:
    """A register tile: ``rows`` x ``cols`` positions by ``block`` channels on lanes."""

    rows: int
    cols: int
    block: int


def _steps(positions: int, vectors: int) -> float:
    """Issue slots of one reduction step: multiply-adds, or loads, or waiting for results.

    The last term is what a wide block of filters costs that streams from the second-level cache
    (fitted to measurements of tiles from 4x4 to 14x2).
    """
    return max(positions * vectors, 0.95 * (positions + vectors) + 1, 6) + vectors**3 / 16


def _fits(positions: int, vectors: int) -> bool:
    return positions * vectors + vectors + 1 <= _REGISTERS


def _blocks(channels: int) -> Iterator[tuple[int, int]]:
    """(vectors a block, blocks) for as many channels."""
    vectors = -(-channels // LANES)
    for wide in range(1, min(4, vectors) + 1):
        yield wide, -(-vectors // wide)


@cache
def pixel_tile(rows: int, cols: int, channels: int, depth: int, pooled: bool, tall: bool) -> Tile:
    """The cheapest tile for a map of ``rows`` x ``cols`` outputs of ``channels``.

    Args:
        depth: products in the sum of one output.
        pooled: the epilogue pools 2x2, so tiles have two rows and an even number of columns.
        tall: tiles of two rows are allowed.
    """
    best, least = Tile(1, 1, LANES), math.inf
    heights = (2,) if pooled else (1, 2) if tall and rows >= 2 else (1,)
    for height in heights:
        for width in range(2 if pooled else 1, min(cols, 28) + 1, 2 if pooled else 1):
            for vectors, blocks in _blocks(channels):
                positions = height * width
                if not _fits(positions, vectors):
                    continue
                tiles = -(-rows // height) * -(-cols // width) * blocks
                step = _steps(positions, vectors)
                cost = tiles * (depth * step + 2 * positions * vectors + 20)
                if cost < least:
                    best, least = Tile(height, width, vectors * LANES), cost
    return best


@cache
def filter_tile(taps: int, run: int, pieces: int, filters: int, pixels: int) -> Tile:
    """The cheapest tile of a filter gradient: rows of taps x contiguous (s, c) x filters.

    Args:
        taps: rows of taps.
        run: contiguous elements of a row of taps; ``pieces`` such runs make a row.
        pixels: output pixels over which a tile stays in registers.
    """
    best, least = Tile(1, 1, LANES), math.inf
    for height in {1, taps}:
        for width in range(1, min(run, 28) + 1):
            for vectors, blocks in _blocks(filters):
                positions = height * width
                if not _fits(positions, vectors):
                    continue
                tiles = taps // height * pieces * -(-run // width) * blocks
                step = _steps(positions, vectors)
                cost = tiles * (pixels * step + 2 * positions * vectors + 20)
                if cost < least:
                    best, least = Tile(height, width, vectors * LANES), cost
    return best
