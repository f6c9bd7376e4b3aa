"""Kernels of convolution and its gradients, fused or not.

The constants of a kernel are the sizes of device/conv.cuh; the batch size is an argument.
"""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors import conv2d_groups, conv2d_winograd
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
    pairs,
    tensors,
)
from convloom.backends.cuda.selectors.config import chosen
from convloom.backends.cuda.selectors.filtering import Filtering
from convloom.backends.cuda.selectors.partial import PartialSums, SampleChunks
from convloom.backends.cuda.selectors.tiles import (
    SLIDING_BLOCK,
    SLIDING_THREADS,
    direct_band,
    forward_tile,
    gradient_tile,
    sliding_tile,
    stages,
    threads,
)
from convloom.backends.selecting import activation_constants, mask_constants
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops.conv2d import ConvGeometry
from convloom.ops.fused import RELU, FusedConv2d, PooledConv2dGrad

#: The most taps (C*R*S) that the warp rung of the filter gradient serves, without a pool and with.
_FEW_TAPS, _FEW_POOLED_TAPS = 16, 32

#: Of the direct rung, for few taps: most blocks, and the fewest pixels or windows of one.
_WALKS, _LEAST_WALK = 2048, 128

#: Of the sparse rung: channels of a block, filters of a warp, and the most bytes of shared memory
#: of a filter gradient and of an input gradient (64 KB is what every GPU can grant).
_SPARSE_CHANNELS, _SPARSE_FILTERS, _WGRAD_BYTES, _DGRAD_BYTES = 16, 8, 47 * 1024, 62 * 1024

#: Filters whose weights the sparse input gradient has in shared memory at once.
_SPARSE_SLICES = (16, 8)

#: Blocks of the sparse input gradient that make strips of images worth their common window rows;
#: the fewest window rows of a strip; most warps of a block, and of one of a large batch.
_SPARSE_BLOCKS, _LEAST_STRIP, _SPARSE_WARPS, _SHARING_WARPS = 128, 3, 12, 6

#: Window columns of a strip of the sliding input gradient, best first.
_SLIDING_STRIPS = (3, 2)


def _forward(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 images, row-major or NHWC, and filters, KCRS or KRSC."""
    if not _served(node, specs):
        return None
    x, w, y = (specs[name] for name in (*node.inputs[:2], *node.outputs[:1]))
    constants = sizes(cast(ConvGeometry, node.op), x, w, y)
    build = Builder(specs)
    constants["BIAS"] = int(len(node.inputs) > 2)
    build.each("conv2d_fprop/naive", constants, _forward_arguments(node, x.shape[0]), y.size)
    return build.selection("naive", "conv2d_fprop")


def _dgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    dy, w, dx = (specs[name] for name in (*node.inputs[:2], *node.outputs))
    constants = sizes(cast(ConvGeometry, node.op), dx, w, dy)
    build = Builder(specs)
    build.each("conv2d_dgrad/naive", constants, (*tensors(node), dx.shape[0]), dx.size)
    return build.selection("naive", "conv2d_dgrad")


def _wgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    x, dy, dw = (specs[name] for name in (*node.inputs, *node.outputs[:1]))
    constants = sizes(cast(ConvGeometry, node.op), x, dw, dy)
    build = Builder(specs)
    split = SampleChunks(build, node.outputs, x.shape[0])
    inputs = (Tensor(node.inputs[0]), Tensor(node.inputs[1]))
    arguments = (*inputs, split.outputs[0], x.shape[0], split.samples)
    build.each("conv2d_wgrad/naive", constants, arguments, dw.size * split.count, threads=64)
    split.add_up()
    return build.selection("naive", "conv2d_wgrad")


def _fused_forward(node: Node, specs: Specs) -> Selection | None:
    """As the naive rung; a pooled map and its index must lie alike."""
    if not _served(node, specs) or not _alike(specs, *node.outputs):
        return None
    op = cast(FusedConv2d, node.op)
    x, w, y = (specs[name] for name in (*node.inputs[:2], *node.outputs[:1]))
    constants = sizes(op, x, w, y) | {
        "BIAS": int(len(node.inputs) > 2),
        **activation_constants(op),
        "POOL": op.pool,
    }
    arguments = _fused_arguments(node, x.shape[0])
    build = Builder(specs)
    build.each("conv2d_fprop/fused", constants, arguments, y.size)
    return build.selection("fused", "conv2d_fprop")


def _fused_dgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs) or not _alike(specs, *node.inputs[2:], *node.outputs):
        return None
    dy, w, *mask = (Tensor(name) for name in node.inputs)
    build = Builder(specs)
    _add_fused_dgrad(build, node, dy, ABSENT, w, mask[0] if mask else ABSENT)
    return build.selection("fused", "conv2d_dgrad")


def _fused_wgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    x, dy = (Tensor(name) for name in node.inputs)
    build = Builder(specs)
    _add_fused_wgrad(build, node, x, dy, ABSENT, node.outputs)
    return build.selection("fused", "conv2d_wgrad")


def _fused_pooled(node: Node, specs: Specs) -> Selection | None:
    """Filter and bias gradient in one launch, the input's in another."""
    op = cast(PooledConv2dGrad, node.op)
    if not _pooled_served(node, specs):
        return None
    x, w, dy, index = (Tensor(name) for name in node.inputs)
    build = Builder(specs)
    _add_fused_wgrad(build, node, x, dy, index, node.outputs[: 1 + op.has_bias])
    if op.needs_dx:
        mask = x if op.mask == RELU else ABSENT
        _add_fused_dgrad(build, node, dy, index, w, mask)
    return build.selection("fused", "conv2d_wgrad")


def _add_fused_dgrad(
    build: Builder, node: Node, dy: Tensor, index: Argument, w: Tensor, mask: Argument
) -> None:
    """The launch that writes the node's last output, dx."""
    dx = build.specs[node.outputs[-1]]
    constants = sizes(
        cast(ConvGeometry, node.op), dx, build.specs[w.name], build.specs[dy.name]
    ) | {**mask_constants(node.op), "POOL": int(index != ABSENT)}
    arguments = (dy, index, w, mask, Tensor(node.outputs[-1]), dx.shape[0])
    build.each("conv2d_dgrad/fused", constants, arguments, dx.size)


def _add_fused_wgrad(
    build: Builder, node: Node, x: Tensor, dy: Tensor, index: Argument, outputs: tuple[str, ...]
) -> None:
    """The launches that write dw and, if it is among ``outputs``, db."""
    image, weights = build.specs[x.name], build.specs[outputs[0]]
    constants = sizes(cast(ConvGeometry, node.op), image, weights, build.specs[dy.name]) | {
        "BIAS": int(len(outputs) > 1),
        "POOL": int(index != ABSENT),
    }
    split = SampleChunks(build, outputs, image.shape[0])
    facts = (image.shape[0], split.samples, split.stride)
    arguments = (x, dy, index, *split.outputs, *facts)
    items = split.stride * split.count
    build.each("conv2d_wgrad/fused", constants, arguments, items, threads=64)
    split.add_up()


def _tiled_forward(node: Node, specs: Specs) -> Selection | None:
    """Small groups have kernels of their own."""
    if not _served(node, specs) or not _alike(specs, *node.outputs):
        return None
    x, w, y = (specs[name] for name in (*node.inputs[:2], *node.outputs[:1]))
    constants = sizes(cast(ConvGeometry, node.op), x, w, y)
    if getattr(node.op, "pool", 0) or not conv2d_groups.serves(constants):
        return _forward_by_tiles(node, specs, "tiled")
    constants |= {"BIAS": int(len(node.inputs) > 2), **activation_constants(node.op)}
    build = Builder(specs)
    arguments = _fused_arguments(node, x.shape[0])[:4]
    conv2d_groups.add_forward(build, constants, arguments, x.shape[0])
    return build.selection("tiled", "conv2d_groups_fprop")


def _async_forward(node: Node, specs: Specs) -> Selection | None:
    """Serves channels that can be read four at a time, small groups apart.

    Tiles of 128 filters stay with the rung below: they multiply for so long that loads arrive in
    time anyway, and it was 5 % faster.
    """
    x, w, y = (specs[name] for name in (*node.inputs[:2], *node.outputs[:1]))
    op = cast(ConvGeometry, node.op)
    fours = channels_last(x) and channels_last(w) and w.shape[1] % 4 == 0
    small = conv2d_groups.serves(sizes(op, x, w, y))
    if not fours or (small and not getattr(op, "pool", 0)):
        return None
    wide = forward_tile(w.shape[0] // op.groups, w.size // w.shape[0], vectors=True)["BN"] == 128
    return None if wide else _forward_by_tiles(node, specs, "async")


def _forward_by_tiles(node: Node, specs: Specs, rung: str) -> Selection | None:
    if not _served(node, specs) or not _alike(specs, *node.outputs):
        return None
    x, w, y = (specs[name] for name in (*node.inputs[:2], *node.outputs[:1]))
    constants = sizes(cast(ConvGeometry, node.op), x, w, y) | {
        "BIAS": int(len(node.inputs) > 2),
        **activation_constants(node.op),
        "POOL": getattr(node.op, "pool", 0),
    }
    filters = constants["K"] // constants["G"]
    depth = w.size // w.shape[0]
    tile = forward_tile(filters, depth, vectors=w.shape[1] % 4 == 0)
    rows = y.shape[0] * y.shape[2] * y.shape[3] * (4 if constants["POOL"] else 1)
    blocks = ceil_div(rows, tile["BM"]) * ceil_div(filters, tile["BN"]) * constants["G"]
    arguments = _fused_arguments(node, x.shape[0])
    build = Builder(specs)
    shared = 0
    if rung == "async":
        constants["STAGES"], shared = stages(tile)
    source = f"conv2d_fprop/{rung}"
    build.add(source, constants | tile, arguments, blocks, threads(tile), shared)
    return build.selection(rung, "conv2d_fprop")


def _direct_forward(node: Node, specs: Specs) -> Selection | None:
    """Serves one group, outputs channels last.

    Either filters of few taps; or stride 1, filters from 2x2 to 5x5, everything channels last and
    read in fours; or what minimal filtering serves, in large batches.
    """
    x, w, y = (specs[name] for name in (*node.inputs[:2], *node.outputs[:1]))
    if not _served(node, specs) or not all(channels_last(specs[name]) for name in node.outputs):
        return None
    constants = sizes(cast(ConvGeometry, node.op), x, w, y) | {
        "BIAS": int(len(node.inputs) > 2),
        **activation_constants(node.op),
        "POOL": getattr(node.op, "pool", 0),
    }
    if constants["G"] == 1 and w.size // w.shape[0] <= _FEW_TAPS and w.shape[0] % 4 == 0:
        return _few_taps_forward(node, specs, constants)
    block = direct_band(constants) if _direct_served(constants) else None
    if block is None:
        return _filtered_forward(node, specs, constants)
    tile_rows = constants["OH"] // 2 if constants["POOL"] else ceil_div(constants["OH"], 2)
    blocks = x.shape[0] * ceil_div(tile_rows, block.rows) * (constants["K"] // block.filters)
    arguments = _fused_arguments(node, x.shape[0])
    build = Builder(specs)
    sliding = _add_sliding_forward(build, constants, arguments, x.shape[0])
    own = {"BAND": block.rows, "FILTERS": block.filters, "SLICE": block.slice}
    build.add(
        "conv2d_fprop/direct", constants | own, arguments, blocks, block.threads, block.shared
    )
    if sliding:
        build.choose(last=sliding < chosen().sliding_forward)
    conv2d_winograd.choose_forward(build, constants, arguments[:-1], x.shape[0])
    return build.selection("direct", "conv2d_fprop")


def _filtered_forward(node: Node, specs: Specs, constants: dict[str, int]) -> Selection | None:
    """Serves what minimal filtering does, and large batches by it; others as the rungs below."""
    if not conv2d_winograd.serves(constants, constants["C"], constants["K"]):
        return None
    below = _async_forward(node, specs) or _tiled_forward(node, specs)
    assert below is not None
    build = Builder(specs)
    build.phases += below.launch.phases
    samples = specs[node.inputs[0]].shape[0]
    arguments = _fused_arguments(node, samples)[:-1]
    taken = conv2d_winograd.choose_forward(build, constants, arguments, samples)
    return build.selection("direct" if taken else below.rung, "conv2d_fprop")


def _add_sliding_forward(
    build: Builder, constants: dict[str, int], arguments: tuple[Argument, ...], samples: int
) -> int:
    """The launch of a convolution that ``direct`` serves, and its blocks; none if it cannot serve.

    Serves filters that fit in shared memory, with the inputs of a step, all together.
    """
    tile = sliding_tile(constants, chosen().wide)
    if tile is None:
        return 0
    blocks = ceil_div(samples, tile.images) * (constants["K"] // tile.filters)
    own = {"WIDE": tile.wide, "IMAGES": tile.images, "FILTERS": tile.filters}
    own["BLOCKS"] = max(SLIDING_THREADS // tile.threads, 1)
    source = "conv2d_fprop/sliding"
    build.add(source, constants | own, arguments, blocks, tile.threads, tile.shared)
    return blocks


def _few_taps_forward(node: Node, specs: Specs, constants: dict[str, int]) -> Selection:
    build, samples = Builder(specs), specs[node.inputs[0]].shape[0]
    cells = 2 if constants["POOL"] else 1
    places = samples * (constants["OH"] // cells) * (constants["OW"] // cells)
    chunk = ceil_div(max(ceil_div(places, _WALKS), _LEAST_WALK), 64) * 64
    across = ceil_div(constants["K"], min(128, 1 << (constants["K"] - 1).bit_length()))
    blocks = ceil_div(places, chunk) * across
    arguments = (*_fused_arguments(node, samples), chunk)
    build.add("conv2d_fprop/direct_few", constants, arguments, blocks, 256)
    return build.selection("direct", "conv2d_fprop")


def _direct_served(sizes: dict[str, int]) -> bool:
    steps = {sizes[name] for name in ("UH", "UW", "DH", "DW", "G")}
    sides, last = (sizes["R"], sizes["S"]), not (sizes["XROW"] or sizes["WROW"])
    return steps == {1} and min(sides) >= 2 and max(sides) <= 5 and last and sizes["C"] % 4 == 0


def _tiled_dgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs) or not _alike(specs, *node.inputs[2:], *node.outputs):
        return None
    dy, w, *mask = (Tensor(name) for name in node.inputs)
    build = Builder(specs)
    dx = specs[node.outputs[0]]
    constants = sizes(cast(ConvGeometry, node.op), dx, specs[w.name], specs[dy.name])
    if conv2d_groups.serves(constants):
        constants |= mask_constants(node.op)
        arguments = (dy, w, mask[0] if mask else ABSENT, Tensor(node.outputs[0]))
        conv2d_groups.add_dgrad(build, constants, arguments, dx.shape[0])
        return build.selection("tiled", "conv2d_groups_dgrad")
    _add_tiled_dgrad(build, node, dy, ABSENT, w, mask[0] if mask else ABSENT)
    return build.selection("tiled", "conv2d_dgrad")


def _direct_dgrad(node: Node, specs: Specs) -> Selection | None:
    """Serves what minimal filtering does, and large batches by it; others as the tiled rung."""
    if not _served(node, specs):
        return None
    dy, w, *mask = (Tensor(name) for name in node.inputs)
    dx, a = Tensor(node.outputs[0]), mask[0] if mask else ABSENT
    image = specs[dx.name]
    constants = sizes(cast(ConvGeometry, node.op), image, specs[w.name], specs[dy.name])
    served = conv2d_winograd.serves(constants, constants["K"], constants["C"])
    if not served or not _alike(specs, *node.inputs[2:], dx.name):
        return None
    build = Builder(specs)
    _add_tiled_dgrad(build, node, dy, ABSENT, w, a)
    constants |= {**mask_constants(node.op), "POOL": 0}
    given = (dy, w, ABSENT, a, dx)
    taken = conv2d_winograd.choose_dgrad(build, constants, given, image.shape[0])
    return build.selection("direct" if taken else "tiled", "conv2d_dgrad")


def _tiled_wgrad(node: Node, specs: Specs) -> Selection | None:
    """Large batches are split into chunks, whose partial sums a second launch adds up."""
    if not _served(node, specs):
        return None
    x, dy = (Tensor(name) for name in node.inputs)
    build = Builder(specs)
    image = specs[x.name]
    constants = sizes(cast(ConvGeometry, node.op), image, specs[node.outputs[0]], specs[dy.name])
    if conv2d_groups.serves(constants):
        constants |= {"BIAS": int(len(node.outputs) > 1)}
        conv2d_groups.add_wgrad(build, node, constants, (x, dy), image.shape[0])
        return build.selection("tiled", "conv2d_groups_wgrad")
    _add_tiled_wgrad(build, node, x, dy, ABSENT, has_bias=len(node.outputs) > 1)
    return build.selection("tiled", "conv2d_wgrad")


def _tiled_pooled(node: Node, specs: Specs) -> Selection | None:
    op = cast(PooledConv2dGrad, node.op)
    if not _pooled_served(node, specs):
        return None
    x, w, dy, index = (Tensor(name) for name in node.inputs)
    build = Builder(specs)
    _add_tiled_wgrad(build, node, x, dy, index, op.has_bias)
    if op.needs_dx:
        _add_tiled_dgrad(build, node, dy, index, w, x if op.mask == RELU else ABSENT)
    return build.selection("tiled", "conv2d_wgrad")


def _warp_wgrad(node: Node, specs: Specs) -> Selection | None:
    """Serves filters of few taps, in one group."""
    if not _served(node, specs) or not _few_taps(node, specs[node.outputs[0]], _FEW_TAPS):
        return None
    build = Builder(specs)
    inputs = (Tensor(node.inputs[0]), Tensor(node.inputs[1]))
    _add_warp_wgrad(build, node, *inputs, ABSENT, has_bias=len(node.outputs) > 1)
    return build.selection("warp", "conv2d_wgrad")


def _warp_pooled(node: Node, specs: Specs) -> Selection | None:
    op = cast(PooledConv2dGrad, node.op)
    if not _pooled_served(node, specs) or not _few_taps(
        node, specs[node.outputs[0]], _FEW_POOLED_TAPS
    ):
        return None
    x, w, dy, index = (Tensor(name) for name in node.inputs)
    build = Builder(specs)
    _add_warp_wgrad(build, node, x, dy, index, op.has_bias)
    if op.needs_dx:
        _add_tiled_dgrad(build, node, dy, index, w, x if op.mask == RELU else ABSENT)
    return build.selection("warp", "conv2d_wgrad")


def _few_taps(node: Node, dw: TensorSpec, most: int) -> bool:
    return cast(ConvGeometry, node.op).groups == 1 and 0 < dw.size // dw.shape[0] <= most


def _add_warp_wgrad(
    build: Builder, node: Node, x: Tensor, dy: Tensor, index: Argument, has_bias: bool
) -> None:
    """The launches that write the node's first output, dw, and db, the second, if it has one."""
    image, dw = build.specs[x.name], build.specs[node.outputs[0]]
    constants = sizes(cast(ConvGeometry, node.op), image, dw, build.specs[dy.name]) | {
        "BIAS": int(has_bias),
        "POOL": int(index != ABSENT),
    }
    across = min(32, 1 << (dw.shape[0] - 1).bit_length())
    tiles = ceil_div(dw.shape[0], across)
    cells = 2 if index != ABSENT else 1
    depth = image.shape[0] * (constants["OH"] // cells) * (constants["OW"] // cells)
    shape = (dw.shape[0], dw.shape[1], dw.shape[2], dw.shape[3])
    split = PartialSums(build, node, shape, tiles, depth, has_bias, least=256)
    arguments = (x, dy, index, *split.outputs, image.shape[0], split.length, split.stride)
    build.add("conv2d_wgrad/warp", constants, arguments, tiles * split.count, 256)
    split.add_up()


def _direct_wgrad(node: Node, specs: Specs) -> Selection | None:
    """Serves what minimal filtering does; batches of few windows are made by tiles."""
    if not _served(node, specs):
        return None
    x, dy = (Tensor(name) for name in node.inputs)
    image, dw, has_bias = specs[x.name], specs[node.outputs[0]], len(node.outputs) > 1
    constants = sizes(cast(ConvGeometry, node.op), image, dw, specs[dy.name])
    if Filtering.of(constants | {"BIAS": int(has_bias), "POOL": 0}, image.shape[0]) is None:
        return None
    build = Builder(specs)
    _add_tiled_wgrad(build, node, x, dy, ABSENT, has_bias, may_filter=True)
    return build.selection("direct", "conv2d_wgrad")


def _sparse_pooled(node: Node, specs: Specs) -> Selection | None:
    """Serves one group of many channels, stride 1, 3x3 filters, channels last."""
    if not _pooled_served(node, specs):
        return None
    op = cast(PooledConv2dGrad, node.op)
    names = (*node.inputs, node.outputs[0])
    if not all(channels_last(specs[name]) for name in names):
        return None
    x, w, dy, index = (Tensor(name) for name in node.inputs)
    constants = sizes(op, specs[x.name], specs[w.name], specs[dy.name])
    if not _sparse_served(constants):
        return None
    build = Builder(specs)
    if not _add_sparse_wgrad(build, node, constants, op.has_bias):
        return None
    mask = x if op.mask == RELU else ABSENT
    if op.needs_dx:
        blocks = _add_sliding_dgrad(build, node, constants, mask)
        if not _add_sparse_dgrad(build, node, constants, mask):
            _add_tiled_dgrad(build, node, dy, index, w, mask)
        if blocks:
            build.choose(last=blocks < chosen().sliding)
        own = constants | {**mask_constants(op), "POOL": 1}
        given = (dy, w, index, mask, Tensor(node.outputs[-1]))
        conv2d_winograd.choose_dgrad(build, own, given, specs[x.name].shape[0])
    return build.selection("sparse", "conv2d_wgrad")


def _sparse_served(sizes: dict[str, int]) -> bool:
    steps = {sizes[name] for name in ("UH", "UW", "DH", "DW", "G")}
    square = (sizes["R"], sizes["S"]) == (3, 3)
    fours = sizes["C"] % _SPARSE_CHANNELS == 0 and sizes["K"] % _SPARSE_FILTERS == 0
    return steps == {1} and square and fours


def _add_sparse_wgrad(
    build: Builder, node: Node, constants: dict[str, int], has_bias: bool
) -> bool:
    """The launches that write the node's first output, dw, and db, the second, if it has one.

    False if not even a strip of one row of windows fits in shared memory, and minimal filtering
    does not serve either.
    """
    x, _, dy, index = (Tensor(name) for name in node.inputs)
    samples, dw = build.specs[x.name].shape[0], build.specs[node.outputs[0]]
    filters = next(count for count in (32, 16, 8) if constants["K"] % count == 0)
    rows, cols = constants["OH"] // 2, constants["OW"] // 2
    tiles = constants["K"] // filters * (constants["C"] // _SPARSE_CHANNELS)
    strip = _sparse_strip(rows, cols, filters)
    filtering = Filtering.of(constants | {"BIAS": int(has_bias), "POOL": 1}, samples)
    if filtering and (filtering.wanted or not strip):
        split = filtering.split(build, node)
    elif strip:
        shape = (dw.shape[0], dw.shape[1], dw.shape[2], dw.shape[3])
        items = samples * ceil_div(rows, strip)
        # A strip counts as sixteen terms, of which chunks are multiples.
        split = PartialSums(build, node, shape, tiles, 16 * items, has_bias, least=16)
    else:
        return False
    if strip:
        own = constants | {"BIAS": int(has_bias), "STRIP": strip}
        shared = max(_strip_bytes(strip, cols, filters), 4 * 37 * 4 * filters)
        arguments = (x, dy, index, *split.outputs, samples, split.length // 16, split.stride)
        build.add("conv2d_wgrad/sparse", own, arguments, tiles * split.count, 256, shared)
    if filtering:
        filtering.add(build, (x, dy, index), split)
    if strip and filtering:
        build.choose(last=filtering.wanted)
    split.add_up()
    return True


def _sparse_strip(rows: int, cols: int, filters: int) -> int:
    """Window rows of a strip, as many as fit in shared memory; 0 if not even one does."""
    for strips in range(1, rows + 1):
        strip = ceil_div(rows, strips)
        if _strip_bytes(strip, cols, filters) <= _WGRAD_BYTES:
            return strip
    return 0


def _strip_bytes(strip: int, cols: int, filters: int) -> int:
    return 128 * (2 * strip + 2) * (2 * cols + 2) + 8 * strip * cols * filters


def _add_sliding_dgrad(
    build: Builder, node: Node, constants: dict[str, int], mask: Argument
) -> int:
    """The launch that writes the node's last output, dx, and its blocks; none if it cannot serve.

    Serves maps whose window columns make full strips, and filters that fit in shared memory all
    together.
    """
    _, w, dy, index = (Tensor(name) for name in node.inputs)
    samples = build.specs[node.inputs[0]].shape[0]
    rows, cols = constants["OH"] // 2, constants["OW"] // 2
    wide = next((wide for wide in _SLIDING_STRIPS if cols % wide == 0), 0)
    if not (rows and cols and wide):
        return 0
    tall = chosen().tall if rows % chosen().tall == 0 else 1
    strip_threads = cols // wide * _SPARSE_CHANNELS
    images = max(SLIDING_BLOCK // strip_threads, 1)
    threads = images * strip_threads
    plane = images * 2 * tall * 2 * cols + 1
    shared = 4 * constants["K"] * (9 * _SPARSE_CHANNELS + plane) + 16 * tall * threads
    if shared > _DGRAD_BYTES or threads > SLIDING_THREADS:
        return 0
    blocks = ceil_div(samples, images) * (constants["C"] // _SPARSE_CHANNELS)
    build.add(
        "conv2d_dgrad/sliding",
        constants
        | {**mask_constants(node.op), "TALL": tall, "WIDE": wide, "IMAGES": images}
        | {"BLOCKS": max(SLIDING_THREADS // threads, 1)},
        (dy, index, w, mask, Tensor(node.outputs[-1]), samples),
        blocks,
        ceil_div(threads, 32) * 32,
        shared,
    )
    return blocks


def _add_sparse_dgrad(
    build: Builder, node: Node, constants: dict[str, int], mask: Argument
) -> bool:
    """The launch that writes the node's last output, dx; False if no strip fits."""
    _, w, dy, index = (Tensor(name) for name in node.inputs)
    samples = build.specs[node.inputs[0]].shape[0]
    tiles = samples * (constants["C"] // _SPARSE_CHANNELS)
    filters = next(count for count in _SPARSE_SLICES if constants["K"] % count == 0)
    rows = (constants["H"] - 1 + constants["PH"]) // 2 + 1
    row_bytes, weight_bytes = 8 * constants["W"] * _SPARSE_CHANNELS, 128 * 9 * filters
    fitting, wanted = (
        (_DGRAD_BYTES - weight_bytes) // row_bytes,
        ceil_div(_SPARSE_BLOCKS, max(tiles, 1)),
    )
    if fitting == 0:
        return False
    strips = max(ceil_div(rows, fitting), min(wanted, max(rows // _LEAST_STRIP, 1)))
    strip = ceil_div(rows, strips)
    arguments = (dy, index, w, mask, Tensor(node.outputs[-1]), strip, samples)
    build.add(
        "conv2d_dgrad/sparse",
        constants | {**mask_constants(node.op), "FILTERS": filters},
        arguments,
        tiles * ceil_div(rows, strip),
        32 * _sparse_warps(constants, strip, sharing=tiles > _SPARSE_BLOCKS),
        shared=weight_bytes + row_bytes * strip,
    )
    return True


def _sparse_warps(sizes: dict[str, int], strip: int, sharing: bool) -> int:
    """Warps that take the windows of a strip, and of the row above it, in equal rounds."""
    rows, cols = min(strip + 1, sizes["OH"] // 2), sizes["OW"] // 2
    # Eight windows at a time, of rows and columns of one parity.
    units = sum(
        ceil_div((rows + row) // 2 * ((cols + col) // 2), 8) for row in (0, 1) for col in (0, 1)
    )
    rounds = ceil_div(units, _SHARING_WARPS if sharing else _SPARSE_WARPS)
    return max(ceil_div(units, rounds), 1)


def _add_tiled_dgrad(
    build: Builder, node: Node, dy: Tensor, index: Argument, w: Tensor, mask: Argument
) -> None:
    """The launch that writes the node's last output, dx."""
    dx, filters = build.specs[node.outputs[-1]], build.specs[w.name]
    constants = sizes(cast(ConvGeometry, node.op), dx, filters, build.specs[dy.name]) | {
        **mask_constants(node.op),
        "POOL": int(index != ABSENT),
    }
    channels, group = constants["C"], constants["K"] // constants["G"]
    depth = group * constants["R"] * constants["S"]
    tile = forward_tile(channels, depth, vectors=group % 4 == 0)
    # A block's inputs are of one residue class modulo the stride, the largest of which has:
    inputs = ceil_div(dx.shape[2], constants["UH"]) * ceil_div(dx.shape[3], constants["UW"])
    blocks = ceil_div(dx.shape[0] * inputs, tile["BM"]) * ceil_div(channels, tile["BN"])
    blocks *= constants["G"] * constants["UH"] * constants["UW"]
    arguments = (dy, index, w, mask, Tensor(node.outputs[-1]), dx.shape[0])
    build.add("conv2d_dgrad/tiled", constants | tile, arguments, blocks, threads(tile))


def _add_tiled_wgrad(
    build: Builder,
    node: Node,
    x: Tensor,
    dy: Tensor,
    index: Argument,
    has_bias: bool,
    may_filter: bool = False,
) -> None:
    """The launches that write the node's first output, dw, and db, the second, if it has one."""
    image, dw = build.specs[x.name], build.specs[node.outputs[0]]
    constants = sizes(cast(ConvGeometry, node.op), image, dw, build.specs[dy.name]) | {
        "BIAS": int(has_bias),
        "POOL": int(index != ABSENT),
    }
    group, taps = constants["K"] // constants["G"], dw.size // dw.shape[0] + has_bias
    tile = gradient_tile(group, taps)
    tiles = ceil_div(group, tile["BM"]) * ceil_div(taps, tile["BN"]) * constants["G"]
    pixels = constants["OH"] * constants["OW"]
    if index != ABSENT:
        pixels = constants["OH"] // 2 * (constants["OW"] // 2) * 4
    filtering = Filtering.of(constants, image.shape[0]) if may_filter else None
    if filtering and filtering.wanted:
        split = filtering.split(build, node)
    else:
        shape = (dw.shape[0], dw.shape[1], dw.shape[2], dw.shape[3])
        split = PartialSums(build, node, shape, tiles, image.shape[0] * pixels, has_bias)
    arguments = (x, dy, index, *split.outputs, image.shape[0], split.length, split.stride)
    build.add("conv2d_wgrad/tiled", constants | tile, arguments, tiles * split.count, threads(tile))
    if filtering:
        filtering.add(build, (x, dy, index), split)
        build.choose(last=filtering.wanted)
    split.add_up()


def sizes(conv: ConvGeometry, x: TensorSpec, w: TensorSpec, y: TensorSpec) -> dict[str, int]:
    """The constants of device/conv.cuh for a convolution of x with w.

    ``y`` gives only its memory order: its size is that of the convolution's output.
    """
    out = conv.window((w.shape[2], w.shape[3])).output((x.shape[2], x.shape[3]))
    return {
        **{"C": w.shape[1], "G": conv.groups, "K": w.shape[0], "R": w.shape[2], "S": w.shape[3]},
        **{"H": x.shape[2], "W": x.shape[3], "OH": out[0], "OW": out[1]},
        **pairs(U=conv.stride, D=conv.dilation, P=conv.padding),
        **{"XROW": _row(x), "YROW": _row(y), "WROW": _row(w)},
    }


def _row(spec: TensorSpec) -> int:
    return int(not channels_last(spec))


def _forward_arguments(node: Node, n: int) -> tuple[Argument, ...]:
    bias = Tensor(node.inputs[2]) if len(node.inputs) > 2 else ABSENT
    outputs = tuple(Tensor(name) for name in node.outputs)
    return (Tensor(node.inputs[0]), Tensor(node.inputs[1]), bias, *outputs, n)


def _fused_arguments(node: Node, n: int) -> tuple[Argument, ...]:
    """x, w, bias, y, index and the batch size; what is not there is 0."""
    x, w, *bias = (Tensor(name) for name in node.inputs)
    y, *index = (Tensor(name) for name in node.outputs)
    return (x, w, bias[0] if bias else ABSENT, y, index[0] if index else ABSENT, n)


def _alike(specs: Specs, *names: str) -> bool:
    """Whether tensors of one shape lie in one order."""
    return len({channels_last(specs[name]) for name in names}) <= 1


def _pooled_served(node: Node, specs: Specs) -> bool:
    op = cast(PooledConv2dGrad, node.op)
    x, w, dy, index = node.inputs
    pairs_alike = [(dy, index), (w, node.outputs[0])]
    if op.needs_dx:
        pairs_alike.append((x, node.outputs[-1]))
    return _served(node, specs) and all(_alike(specs, *pair) for pair in pairs_alike)


def _served(node: Node, specs: Specs) -> bool:
    names = (*node.inputs, *node.outputs)
    return all(image_order(specs[name]) for name in names) and set(dtypes(node, specs)) <= {
        "float32",
        "uint8",
    }


LADDER = {
    ("Conv2d", "naive"): _forward,
    ("Conv2dDgrad", "naive"): _dgrad,
    ("Conv2dWgrad", "naive"): _wgrad,
    ("Conv2d", "tiled"): _tiled_forward,
    ("Conv2d", "async"): _async_forward,
    ("Conv2d", "direct"): _direct_forward,
    ("Conv2dWgrad", "direct"): _direct_wgrad,
    ("Conv2dDgrad", "tiled"): _tiled_dgrad,
    ("Conv2dDgrad", "direct"): _direct_dgrad,
    ("Conv2dWgrad", "tiled"): _tiled_wgrad,
    ("Conv2dWgrad", "warp"): _warp_wgrad,
    ("FusedConv2d", "fused"): _fused_forward,
    ("FusedConv2dDgrad", "fused"): _fused_dgrad,
    ("FusedConv2dWgrad", "fused"): _fused_wgrad,
    ("PooledConv2dGrad", "fused"): _fused_pooled,
    ("FusedConv2d", "tiled"): _tiled_forward,
    ("FusedConv2d", "async"): _async_forward,
    ("FusedConv2d", "direct"): _direct_forward,
    ("FusedConv2dWgrad", "direct"): _direct_wgrad,
    ("FusedConv2dDgrad", "tiled"): _tiled_dgrad,
    ("FusedConv2dDgrad", "direct"): _direct_dgrad,
    ("FusedConv2dWgrad", "tiled"): _tiled_wgrad,
    ("FusedConv2dWgrad", "warp"): _warp_wgrad,
    ("PooledConv2dGrad", "tiled"): _tiled_pooled,
    ("PooledConv2dGrad", "warp"): _warp_pooled,
    ("PooledConv2dGrad", "sparse"): _sparse_pooled,
}
