"""Convolutions of stride 1 by minimal filtering: which problems it serves, and its launch."""

from __future__ import annotations

from collections.abc import Mapping

from convloom.backends.cpu.launch import (
    Argument,
    CpuLaunch,
    Phase,
    Specialisation,
    Tensor,
    Workspace,
)
from convloom.backends.selecting import activation_constants, mask_constants
from convloom.ir import NHWC, Node, Selection, TensorSpec
from convloom.ops import (
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
)
from convloom.ops.conv2d import ConvGeometry

_WIDEST_LANES = 16
#: A filter gradient works on this many filters at most at a time.
_FILTER_BLOCK = 64
#: Most chunks of images of a filter gradient, and most bytes of all their partial sums.
_CHUNKS, _PARTIAL_BYTES = 16, 8 * 1024 * 1024
#: Blocks are multiples of every register tile's rows.
_TILE_STEP = 24
_SCRATCH_GOAL = 384 * 1024
_STAGE_GOAL = 512 * 1024
#: Bytes of transformed maps beyond which cutting a larger filter into pieces saves nothing.
_PIECES_GOAL = 640 * 1024
#: Tiles a register tile holds, for an odd and an even number of vectors of filters.
_REGISTER_ROWS = (24, 12)


def select_winograd(node: Node, specs: Mapping[str, TensorSpec]) -> Selection | None:
    """The launch for a convolution of stride 1 or its gradients; None for those it does not serve.

    Channels and filters of a group must be multiples of 16, images NHWC, and the map at least 4x4
    (smaller ones waste more of each tile than minimal filtering saves). Filter gradients are
    served for 3x3 filters in one group.
    """
    op = node.op
    if isinstance(op, Conv2dWgrad | FusedConv2dWgrad):
        return _wgrad(node, specs)
    if not isinstance(op, Conv2d | FusedConv2d | Conv2dDgrad | FusedConv2dDgrad):
        return None
    w = specs[node.inputs[1]]
    x, y = specs[node.inputs[0]], specs[node.outputs[0]]
    dgrad = isinstance(op, Conv2dDgrad | FusedConv2dDgrad)
    if not (_saves(w) and _serves(op, w, x, y)):
        return None
    taps = w.shape[2], w.shape[3]
    padding = tuple(tap - 1 - p if dgrad else p for tap, p in zip(taps, op.padding, strict=True))
    if min(padding) < 0:
        return None
    return _selection(node, op, x, y, taps, padding, dgrad)


def _pieces(taps: tuple[int, int]) -> tuple[int, int]:
    """3x3 pieces that a filter is cut into, down and across."""
    return -(-taps[0] // 3), -(-taps[1] // 3)


def _saves(w: TensorSpec) -> bool:
    """Whether the pieces' 16 products each are clearly fewer than the direct form's for a tile."""
    down, across = _pieces((w.shape[2], w.shape[3]))
    return 16 * down * across <= 0.7 * 4 * w.shape[2] * w.shape[3]


def _serves(op: ConvGeometry, w: TensorSpec, x: TensorSpec, y: TensorSpec) -> bool:
    return (
        (op.stride, op.dilation) == ((1, 1), (1, 1))
        and w.shape[0] // op.groups % _WIDEST_LANES == 0
        and w.shape[1] % _WIDEST_LANES == 0
        and x.layout == NHWC
        and y.layout == NHWC
        and min(x.shape[2:]) >= 4
        and min(y.shape[2:]) >= 2
    )


def _selection(
    node: Node,
    op: ConvGeometry,
    x: TensorSpec,
    y: TensorSpec,
    taps: tuple[int, int],
    padding: tuple[int, ...],
    dgrad: bool,
) -> Selection | None:
    pool = getattr(op, "pool", 0) == 2
    n, h, w = x.shape[0], x.shape[2], x.shape[3]
    c, k = x.shape[1] // op.groups, y.shape[1] // op.groups
    down, across = _pieces(taps)
    every = down * across * c  # channels of all pieces of a group
    if down * across > 1 and _TILE_STEP * _tile_bytes(every, k) > _PIECES_GOAL:
        return None
    out = (h + 2 * padding[0] - taps[0] + 1, w + 2 * padding[1] - taps[1] + 1)
    tiles = [extent // 2 if pool else -(-extent // 2) for extent in out]
    odd = not pool and (out[0] % 2 == 1 or out[1] % 2 == 1)
    stage = padding != (0, 0) or odd or taps != (3, 3)
    vectors = 2 if k % (2 * _WIDEST_LANES) == 0 else 1
    block = _block_tiles(every, k)
    tile_rows = _rows_per_item(c, k, tiles)
    sizes = (("C", c), ("K", k), ("G", op.groups), ("R", taps[0]), ("S", taps[1]), ("NV", vectors))
    filters = 16 * every * k * op.groups * 4
    pack = Phase(
        Specialisation("winograd_pack", (*sizes, ("DGRAD", int(dgrad)))),
        (Tensor(node.inputs[1]), Workspace(0), Workspace(filters)),
        items=op.groups * k // _WIDEST_LANES,
    )
    extra = node.inputs[2] if len(node.inputs) > 2 else None
    bias = extra if not dgrad else None
    mask = extra if dgrad else None
    index = node.outputs[1] if pool and len(node.outputs) > 1 else None
    constants = (
        *sizes,
        ("PAD_H", padding[0]),
        ("PAD_W", padding[1]),
        ("TILES", block),
        ("TILE_ROWS", tile_rows),
        ("STAGE", int(stage)),
        ("BIAS", int(bias is not None)),
        *activation_constants(op).items(),
        ("POOL", int(pool)),
        *mask_constants(op).items(),
    )
    arguments: tuple[Argument, ...] = (
        Tensor(node.inputs[0]),
        Workspace(0),
        Workspace(filters),
        _or_null(bias),
        Tensor(node.outputs[0]),
        _or_null(index),
        _or_null(mask),
        h,
        w,
    )
    rows, columns = 2 * tile_rows + 3 * down - 1, 2 * tiles[1] + 3 * across - 1
    staged = rows * columns * c if stage else 0
    main = Phase(
        Specialisation("conv2d_winograd", constants),
        arguments,
        items=n * op.groups * -(-tiles[0] // tile_rows),
        scratch=4 * (16 * block * (every + k) + staged),
    )
    workspace = filters + 9 * every * k * op.groups * 4
    return Selection("winograd", "conv2d_winograd", CpuLaunch((pack, main)), workspace)


def _wgrad(node: Node, specs: Mapping[str, TensorSpec]) -> Selection | None:
    op = node.op
    assert isinstance(op, Conv2dWgrad | FusedConv2dWgrad)
    x, dy, dw = specs[node.inputs[0]], specs[node.inputs[1]], specs[node.outputs[0]]
    only = (dw.shape[2:], op.groups) == ((3, 3), 1)
    if not only or not _serves(op, dw, x, dy) or max(op.padding) > 2:
        return None
    n, c, h, w = x.shape
    k = dy.shape[1]
    block = max(b for b in range(16, _FILTER_BLOCK + 1, 16) if k % b == 0)
    item_bytes = 16 * c * block * 4
    chunks = max(1, min(_CHUNKS, n, _PARTIAL_BYTES // (item_bytes * (k // block))))
    items = chunks * (k // block)
    bias = len(node.outputs) > 1
    tiles = [-(-extent // 2) for extent in dy.shape[2:]]
    staged = (2 * (2 * tiles[1] + 2) * c + 2 * 2 * tiles[1] * block) * 4
    tile_rows = max(1, min(tiles[0], _STAGE_GOAL // staged))
    geometry = (("C", c), ("K", k), ("KB", block), ("PAD_H", op.padding[0]),
                ("PAD_W", op.padding[1]), ("BIAS", int(bias)))  # fmt: skip
    tile = _block_tiles(c, block)
    tuning = (("NV", 2 if block % 32 == 0 else 1), ("TILES", tile), ("TILE_ROWS", tile_rows))
    partials, biases = Workspace(0), Workspace(items * item_bytes)
    images = (Tensor(node.inputs[0]), Tensor(node.inputs[1]))
    scratch = 4 * 16 * tile * (c + block) + tile_rows * staged + 2 * (2 * tiles[1] + 2) * c * 4
    main = Phase(
        Specialisation("conv2d_winograd_wgrad", (*geometry, *tuning)),
        (*images, partials, biases, n, h, w, chunks),
        items=items,
        scratch=scratch,
    )
    outputs = (Tensor(node.outputs[0]), Tensor(node.outputs[1]) if bias else 0)
    reduce = Phase(
        Specialisation("conv2d_winograd_reduce", geometry),
        (partials, biases, *outputs, *images, n, h, w, chunks),
        items=k // 16,
    )
    workspace = items * (item_bytes + block * 4)
    return Selection("winograd", "conv2d_winograd_wgrad", CpuLaunch((main, reduce)), workspace)


def _or_null(name: str | None) -> Argument:
    return 0 if name is None else Tensor(name)


def _block_tiles(c: int, k: int) -> int:
    """Tiles a block: as many register tiles as keep both transformed maps in the cache."""
    return _TILE_STEP * max(1, min(4, _SCRATCH_GOAL // (_tile_bytes(c, k) * _TILE_STEP)))


def _tile_bytes(c: int, k: int) -> int:
    """Both transformed maps of one tile."""
    return 16 * (c + k) * 4


def _rows_per_item(c: int, k: int, tiles: list[int]) -> int:
    """Rows of tiles an item: the count that wastes least of the register tiles, within the cache.

    A register tile computes its 12 (24 for 16 filters) tiles whether they exist or not.
    """
    step = _REGISTER_ROWS[k % (2 * _WIDEST_LANES) == 0]
    row_bytes = 2 * (2 * tiles[1] + 2) * c * 4

    def computed(rows: int) -> int:
        whole, rest = divmod(tiles[0], rows)
        cost = whole * -(-rows * tiles[1] // step)
        return cost + -(-rest * tiles[1] // step)

    fitting = [rows for rows in range(1, tiles[0] + 1) if rows * row_bytes <= _STAGE_GOAL] or [1]
    return min(fitting, key=lambda rows: (computed(rows), rows))
