"""How the products of a stage are shared among the warps of a block. Fixed costs, no timing.

A cost is a number of 128-byte reads of shared memory, which is what the kernels are bound by, were
all warps as long at work as the busiest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from convloom.backends.cuda.onchip.operand import BFLOAT16, Operand
from convloom.backends.cuda.onchip.stages import ConvStage, UnfitError
from convloom.backends.selecting import ceil_div

#: Registers of a thread for sums that do not outlive an image, and for those that outlive it.
_PASSING, _LASTING = 64, 64
#: The most tiles of 16 rows that a warp takes at once, and what the product of one with a tile of 8
#: columns costs.
_ROWS, _MULTIPLY = 6, 2
#: The most filters' gradients, in registers of a thread, that all convolutions together may hold.
MOST_LASTING = 104


@dataclass(frozen=True)
class Tile:
    """Tiles that a warp takes at once: 16 rows, 8 columns each.

    Attributes:
        split: warps that share the products of a unit.
        registers: of a thread, for sums.
    """

    rows: int
    cols: int
    split: int = 1
    registers: int = 0


def forward_tile(
    conv: ConvStage, rows: int, gather: bool, warps: int, images: int, operand: Operand = BFLOAT16
) -> Tile:
    """Pixels by filters; of so many rows of what is handed on."""
    handed_on = rows * conv.handed_on[1]
    reads = operand.depth // 2 if gather else 4
    if conv.pool:  # two tiles hold eight windows (conv_forward.cuh)
        return _product_tile(2 * ceil_div(handed_on, 8), 2, conv.filters, reads, warps, images)
    return _product_tile(ceil_div(handed_on, 16), 1, conv.filters, reads, warps, images)


def dgrad_tile(conv: ConvStage, rows: int, warps: int, images: int) -> Tile:
    """Pixels of the input by channels; of so many of its rows."""
    return _product_tile(ceil_div(rows * conv.size[1], 16), 1, conv.channels, 4, warps, images)


def _product_tile(
    row_tiles: int, together: int, outputs: int, reads: int, warps: int, images: int
) -> Tile:
    """The cheapest tile, if reading 16 rows takes ``reads``; the larger one of two as cheap.

    It has a multiple of ``together`` tiles of 16 rows.
    """
    col_tiles = ceil_div(outputs, 8)
    best, least = Tile(together, 1), float("inf")
    for rows, groups in product(range(together, _ROWS + 1, together), range(1, col_tiles + 1)):
        cols = ceil_div(col_tiles, groups)
        if rows * cols * 4 > _PASSING:
            continue
        units = ceil_div(row_tiles, rows) * groups * images
        cost = ceil_div(units, warps) * warps * (rows * reads + cols * 2 + rows * cols * _MULTIPLY)
        if cost <= least:
            best, least = Tile(rows, cols), cost
    return best


def wgrad_tile(
    conv: ConvStage, gather: bool, height: int, warps: int, images: int, operand: Operand = BFLOAT16
) -> Tile:
    """Filters by channels (or by products, if ``gather``), over so many rows of the output.

    Raises UnfitError where none fits.
    """
    (r, s), pixels = conv.kernel, height * conv.out[1]
    row_tiles = ceil_div(conv.filters, 16)
    col_tiles = (conv.channels * r * s + 8) // 8 if gather else ceil_div(conv.channels, 8)
    unit_rows, taps = (1, 1) if gather else (r, s)
    steps = ceil_div(pixels, operand.depth) * images
    best, least = None, float("inf")
    for row_groups, col_groups in product(range(1, row_tiles + 1), range(1, col_tiles + 1)):
        rows, cols = ceil_div(row_tiles, row_groups), ceil_div(col_tiles, col_groups)
        units = row_groups * col_groups * unit_rows
        split = max(1, min(warps // units, steps))
        each = ceil_div(units * split, warps)
        registers = each * (rows * taps * cols + rows * (not gather)) * 4
        if registers > _LASTING:
            continue
        reads = 4 * rows + (operand.depth // 4 * cols if gather else taps * 2 * cols)
        cost = each * warps * ceil_div(steps, split) * reads
        if cost < least:
            best, least = Tile(rows, cols, split, registers), cost
    if best is None:
        raise UnfitError("a convolution's filter gradients do not fit in a block's registers")
    return best
