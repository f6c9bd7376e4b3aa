"""Convolutions of many small groups, depthwise ones among them: kernels/cuda/conv2d_groups_*."""

from __future__ import annotations

from convloom.backends.cuda.launch import Argument
from convloom.backends.cuda.selectors.common import Builder, ceil_div
from convloom.backends.cuda.selectors.partial import PartialSums
from convloom.ir import Node

#: Threads of a block, the most channels or filters of a small group, and the widest filter row of
#: groups and of depthwise filters.
_THREADS, _MOST, _WIDE_GROUP, _WIDE = 256, 8, 3, 7
#: Columns a thread makes, most columns it reads for them, and bytes of shared memory for filters.
_TILES, _READ, _SHARED = range(4, 8), 18, 44 * 1024
#: Blocks that a launch should have before blocks take more than one turn, and most turns.
_BLOCKS, _TURNS = 4096, 8

Sizes = dict[str, int]


def serves(sizes: Sizes) -> bool:
    """Whether the kernels serve a convolution (constants of device/conv.cuh), channels last."""
    if sizes["G"] == 1 or any(sizes[name] for name in ("XROW", "YROW", "WROW")):
        return False
    channels, filters = sizes["C"], sizes["K"] // sizes["G"]
    if channels == filters == 1:
        shape = sizes["K"] % 4 == 0 and sizes["S"] <= _WIDE
    else:
        fours = channels % 4 == 0 and filters % 4 == 0
        shape = fours and max(channels, filters) <= _MOST and sizes["S"] <= _WIDE_GROUP
    return shape and all(_fits(sizes, back) for back in (False, True))


def add_forward(build: Builder, sizes: Sizes, tensors: tuple[Argument, ...], samples: int) -> None:
    """The launch that makes y of x, w and bias (0 where absent); BIAS and ACT are in ``sizes``."""
    _add(build, "conv2d_groups_fprop/tiled", sizes, tensors, samples, back=False)


def add_dgrad(build: Builder, sizes: Sizes, tensors: tuple[Argument, ...], samples: int) -> None:
    """The launch that makes dx of dy, w and the mask (0 where absent); MASK is in ``sizes``."""
    _add(build, "conv2d_groups_dgrad/tiled", sizes, tensors, samples, back=True)


def add_wgrad(
    build: Builder, node: Node, sizes: Sizes, tensors: tuple[Argument, ...], samples: int
) -> None:
    """The launches that write the node's outputs dw and, if BIAS, db, from x and dy."""
    channels = sizes["C"]
    shape = (sizes["K"], channels, sizes["R"], sizes["S"])
    lanes = sizes["K"] // 4 * max(channels // 4, 1)
    across, tile = _across(lanes), _tile(sizes, back=False)
    rows = sizes["R"] if channels == 1 and sizes["R"] * sizes["S"] <= 9 else 1
    units = samples * sizes["OH"] * ceil_div(sizes["OW"], tile)
    tiles = ceil_div(lanes, across) * (sizes["R"] // rows)
    least = 2 * (_THREADS // across)
    split = PartialSums(build, node, shape, tiles, units, bool(sizes["BIAS"]), least)
    arguments = (*tensors, *split.outputs, samples, split.length, split.stride)
    constants = sizes | {"ACROSS": across, "TQ": tile, "RT": rows}
    source = "conv2d_groups_wgrad/tiled"
    build.add(source, constants, arguments, tiles * split.count, _THREADS)
    split.add_up()


def _add(
    build: Builder,
    source: str,
    sizes: Sizes,
    tensors: tuple[Argument, ...],
    samples: int,
    back: bool,
) -> None:
    channels = sizes["C"] * sizes["G"] if back else sizes["K"]
    rows, cols = (sizes["H"], sizes["W"]) if back else (sizes["OH"], sizes["OW"])
    across, tile = _across(channels // 4), _tile(sizes, back)
    units = samples * rows * ceil_div(cols, tile)
    lanes = ceil_div(channels // 4, across)
    blocks = ceil_div(units, _THREADS // across)
    turns = max(1, min(_TURNS, blocks * lanes // _BLOCKS))
    constants = sizes | {"ACROSS": across, "TQ": tile}
    arguments = (*tensors, samples, turns)
    build.add(source, constants, arguments, ceil_div(blocks, turns) * lanes, _THREADS)


def _fits(sizes: Sizes, back: bool) -> bool:
    """Whether some tile reads few columns, and a block's filters fit in shared memory."""
    filters = sizes["K"] // sizes["G"]
    channels = sizes["C"] * sizes["G"] if back else sizes["K"]
    summed = filters if back else sizes["C"]
    nbytes = 16 * sizes["R"] * sizes["S"] * summed * _across(channels // 4)
    return nbytes <= _SHARED and any(_read(sizes, back, t) <= _READ for t in _widths(sizes, back))


def _across(lanes: int) -> int:
    """Lanes side by side: the most, up to a warp, of which at most a quarter are idle."""
    widths = (32, 16, 8, 4, 2, 1)
    return next(w for w in widths if 4 * lanes >= 3 * ceil_div(lanes, w) * w)


def _tile(sizes: Sizes, back: bool) -> int:
    """Columns a thread makes: the width whose tiles of a row read and make the fewest."""
    cols = sizes["W"] if back else sizes["OW"]
    fitting = [t for t in _widths(sizes, back) if _read(sizes, back, t) <= _READ]
    return min(fitting, key=lambda t: (ceil_div(cols, t) * (_read(sizes, back, t) + t), t))


def _widths(sizes: Sizes, back: bool) -> list[int]:
    """Of the input gradient: multiples of the stride."""
    return [t for t in _TILES if not back or t % sizes["UW"] == 0]


def _read(sizes: Sizes, back: bool, tile: int) -> int:
    """Columns of the other side that a tile meets."""
    reach = (sizes["S"] - 1) * sizes["DW"]
    if not back:
        return (tile - 1) * sizes["UW"] + reach + 1
    return (tile - 1 + sizes["PW"]) // sizes["UW"] - (sizes["PW"] - reach) // sizes["UW"] + 1
