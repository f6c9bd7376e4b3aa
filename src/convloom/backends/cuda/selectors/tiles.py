"""Shapes of tiles (kernels/cuda/device/tile.cuh), by fixed rules that never look at the batch.

A tile of BM x BN sums is made by (BM / TM) * (BN / TN) threads, TM x TN sums each. A thread's four
loads feed 4 to 8 times as many multiply-adds, so tiles are as tall as registers allow, and as wide
as the matrix has columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convloom.backends.cuda.selectors.common import ceil_div

#: Blocks that a launch should have at least, where a sum can be split into chunks.
BLOCKS = 512
#: Bytes of shared memory that every GPU grants every block.
SHARED_BYTES = 48 * 1024
#: Threads that a block of the direct convolution may have: many if they make full rounds of the
#: four schedulers of a multiprocessor, else few; and at least half as many.
DIRECT_THREADS, DIRECT_ROUND = (256, 128), 128
#: Of sliding convolutions: threads that the strips of an image, or of several, should make;
#: threads that share a multiprocessor, so that one has 128 registers.
SLIDING_BLOCK, SLIDING_THREADS = 128, 512
#: Of the forward one: the fewest and the most threads of a block, which then may have more
#: registers; and the most bytes of shared memory, so that four blocks share a multiprocessor.
FORWARD_THREADS, FORWARD_BYTES = (96, 384), 56 * 1024
#: Of minimal filtering: floats of a chunk's inputs in shared memory, and of filters at most; pairs
#: of a window and a filter that a block makes at a time; and most groups of windows of a block.
WINOGRAD_FLOATS, WINOGRAD_PAIRS, WINOGRAD_EACH = 8192, 1024, 8
#: Most bytes of partial sums of a step.
PARTIAL_BYTES = 64 * 1024 * 1024

Tile = dict[str, int]


def forward_tile(cols: int, depth: int, vectors: bool) -> Tile:
    """For many rows: pixels by filters.

    Args:
        vectors: whether operands are read four neighbours of the depth at a time.
    """
    shapes = {
        16: (128, 16, 4, 4),
        32: (128, 32, 8, 4),
        64: (128, 64, 8, 8),
        128: (128, 128, 8, 8),
    }
    width = _width(cols, tuple(shapes))
    return _tile(*shapes[width], _steps(depth, vectors))


def linear_tile(cols: int, depth: int, vectors: bool) -> Tile:
    """For few rows: samples by features."""
    shapes = {16: (64, 16, 4, 4), 64: (64, 64, 8, 4)}
    width = _width(cols, tuple(shapes))
    return _tile(*shapes[width], _steps(depth, vectors))


def gradient_tile(rows: int, cols: int) -> Tile:
    """For few rows and columns but a deep sum: filters by taps."""
    if rows > 64 and cols >= 128:
        return _tile(128, 128, 8, 8, 16)
    height = 32 if rows <= 32 else 64
    return _tile(height, _width(cols, (64, 96, 128, 160)), 8, 4, 16)


def stages(tile: Tile) -> tuple[int, int]:
    """Stages of asynchronous copies, and the bytes of shared memory that they take.

    Three where every GPU grants the memory, else two (device/async_tile.cuh has the pitch).
    """
    pitch = tile["BK"] + (4 if tile["BK"] % 8 == 0 else 8)
    nbytes = 4 * pitch * (tile["BM"] + tile["BN"])
    count = 3 if 3 * nbytes <= SHARED_BYTES else 2
    return count, count * nbytes


@dataclass(frozen=True)
class DirectBand:
    """A block of conv2d_fprop/direct.

    Attributes:
        rows: rows of tiles, each of two output rows (BAND).
        filters: of the block (FILTERS).
        slice: channels at a time (SLICE).
        threads: one for four filters of a tile, filled up to whole warps.
        shared: bytes of shared memory.
    """

    rows: int
    filters: int
    slice: int
    threads: int
    shared: int


def direct_band(sizes: Mapping[str, int]) -> DirectBand | None:
    """The block with the fewest filters that has threads enough; None if there is none.

    Args:
        sizes: the constants of device/conv.cuh, and POOL.
    """
    rows, cols = (sizes[side] // 2 * 2 if sizes["POOL"] else sizes[side] for side in ("OH", "OW"))
    down, across = ceil_div(rows, 2), ceil_div(cols, 4)
    for filters in (32, 64, 128):
        row = across * filters // 4  # threads for a row of tiles
        if sizes["K"] % filters or not down:
            return None
        for most in DIRECT_THREADS:
            band = ceil_div(down, ceil_div(down, max(most // max(row, 1), 1)))
            full = band * row % DIRECT_ROUND == 0 or most == DIRECT_THREADS[-1]
            # A band of one row of tiles would read its inputs nearly twice.
            if full and band >= min(2, down) and most // 2 <= band * row <= most:
                return _sliced(sizes, band, across, filters)
    return None


def _sliced(sizes: Mapping[str, int], band: int, across: int, filters: int) -> DirectBand | None:
    """As many channels at a time as fit in shared memory that every GPU grants."""
    rows, pitch = 2 * band + sizes["R"] - 1, 4 * ceil_div(4 * across + sizes["S"] - 1, 4)
    while across % 2 == 0 and 2 * pitch % 8 != across % 8:
        pitch += 1
    nbytes = 16 * (rows * pitch + sizes["R"] * sizes["S"] * filters)  # of four channels
    threads = ceil_div(band * across * filters // 4, 32) * 32
    for fours in (4, 2, 1):
        if sizes["C"] % (4 * fours) == 0 and fours * nbytes <= SHARED_BYTES:
            return DirectBand(band, filters, 4 * fours, threads, fours * nbytes)
    return None


@dataclass(frozen=True)
class SlidingTile:
    """A block of conv2d_fprop/sliding.

    Attributes:
        wide: output columns of a thread (WIDE).
        images: of the block (IMAGES).
        filters: of the block (FILTERS).
        threads: one for four filters of a strip, filled up to whole warps.
        shared: bytes of shared memory.
    """

    wide: int
    images: int
    filters: int
    threads: int
    shared: int


def sliding_tile(sizes: Mapping[str, int], widest: int) -> SlidingTile | None:
    """The block with the most filters that fits; None if there is none.

    Args:
        sizes: the constants of device/conv.cuh, and POOL.
        widest: the most output columns of a thread, which has those that overhang least.
    """
    cols = sizes["OW"] // 2 * 2 if sizes["POOL"] else sizes["OW"]
    if not cols or (sizes["POOL"] and sizes["OH"] < 2):
        return None
    wide = min((w for w in (6, 4) if w <= widest), key=lambda w: ceil_div(cols, w) * w)
    across, fours = ceil_div(cols, wide), sizes["C"] // 4
    line = (2 + sizes["R"] // 2 * 2) * (across * wide + sizes["S"] - 1)
    apart = next(apart for each, apart in ((8, 1), (4, 2), (2, 4), (1, 1)) if fours % each == 0)
    least, most = FORWARD_THREADS
    for filters in (64, 32, 16):
        each = across * filters // 4  # threads of an image
        for images in range(max(SLIDING_BLOCK // each, 1), 0, -1):
            plane = images * line + (apart - images * line) % 8
            shared = 16 * fours * (sizes["R"] * sizes["S"] * filters + plane)
            count = ceil_div(images * each, 32) * 32
            fits = shared <= FORWARD_BYTES and least <= count <= most
            if fits and sizes["K"] % filters == 0:
                return SlidingTile(wide, images, filters, count, shared)
    return None


@dataclass(frozen=True)
class WinogradTile:
    """A block of minimal filtering (kernels/cuda/device/winograd.cuh).

    Attributes:
        filters: of the block (FILTERS).
        windows: that it makes at a time.
        chunk: channels that it multiplies at a time.
        chunks: of all channels, filled up with zeros.
        shared: bytes of shared memory.
    """

    filters: int
    windows: int
    chunk: int
    chunks: int
    shared: int


def plain_3x3(sizes: Mapping[str, int]) -> bool:
    """Whether a convolution has 3x3 filters, stride 1, no dilation, one group, and all tensors
    channels last; ``sizes``: the constants of device/conv.cuh."""
    ones = {sizes[name] for name in ("UH", "UW", "DH", "DW", "G")}
    last = not any(sizes[name] for name in ("XROW", "YROW", "WROW"))
    return ones == {1} and last and (sizes["R"], sizes["S"]) == (3, 3)


def output_windows(sizes: Mapping[str, int]) -> int:
    """Windows of 2x2 outputs of a sample: those that a pool takes, if POOL; else the last ones of a
    map may overhang it."""
    out = sizes["OH"], sizes["OW"]
    rows, cols = (side // 2 if sizes["POOL"] else ceil_div(side, 2) for side in out)
    return rows * cols


def winograd_tile(depth: int, filters: int) -> WinogradTile | None:
    """The block with the most filters that wastes at most a quarter of its products; None without.

    Args:
        depth: channels of a sum.
        filters: in all.
    """
    for each in (32, 16):
        windows = WINOGRAD_PAIRS // each
        chunk = WINOGRAD_FLOATS // 16 // windows
        chunks = ceil_div(depth, chunk)
        unit = 16 * chunk * each
        kept = chunks if chunks * unit <= WINOGRAD_FLOATS else 1
        if filters % each == 0 and 4 * depth >= 3 * chunk * chunks and depth % 4 == 0:
            shared = 4 * (WINOGRAD_FLOATS + kept * unit)
            return WinogradTile(each, windows, chunk, chunks, shared)
    return None


def threads(tile: Tile) -> int:
    """Threads of a block."""
    return tile["BM"] // tile["TM"] * (tile["BN"] // tile["TN"])


def chunks(
    depth: int, tiles: int, nbytes: int, least: int = 64, blocks: int = BLOCKS
) -> tuple[int, int]:
    """How a deep sum is split: (terms of a chunk, chunks).

    Args:
        depth: terms of the sum.
        tiles: blocks of one chunk.
        nbytes: of one chunk's partial sums.
        least: terms below which a chunk is not worth its partial sums.
        blocks: that there should be.
    """
    most = min(ceil_div(blocks, tiles), PARTIAL_BYTES // max(nbytes, 1), ceil_div(depth, least))
    length = ceil_div(ceil_div(depth, max(most, 1)), 16) * 16
    return max(length, 16), max(ceil_div(depth, max(length, 16)), 1)


def _tile(rows: int, cols: int, thread_rows: int, thread_cols: int, step: int) -> Tile:
    return {"BM": rows, "BN": cols, "BK": step, "TM": thread_rows, "TN": thread_cols}


def _width(cols: int, widths: tuple[int, ...]) -> int:
    """The widest tile that wastes at most a quarter of its columns, or else the least."""
    covered = {width: ceil_div(cols, width) * width for width in widths}
    frugal = [width for width in widths if 4 * cols >= 3 * covered[width]]
    return max(frugal) if frugal else min(widths, key=lambda width: (covered[width], -width))


def _steps(depth: int, vectors: bool) -> int:
    """The step of the depth, up to 16, that wastes least; the longest of equals."""
    grain = 4 if vectors else 1
    lengths = range(8, 17, grain) if depth >= 8 else (max(grain, depth),)
    return min(lengths, key=lambda step: (ceil_div(depth, step) * step, -step))
