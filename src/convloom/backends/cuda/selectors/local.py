"""Kernels of locally connected layers and their gradients."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument
from convloom.backends.cuda.selectors.common import (
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
    tensors,
)
from convloom.backends.cuda.selectors.conv2d import sizes
from convloom.backends.cuda.selectors.tiles import Tile, gradient_tile, linear_tile, threads
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops.conv2d import ConvGeometry

_FOLDERS = {"Local2d": "local_fprop", "Local2dDgrad": "local_dgrad", "Local2dWgrad": "local_wgrad"}


def _naive(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 images, row-major or NHWC, and filters, KCRS or KRSC."""
    if not _served(node, specs):
        return None
    folder, build = _FOLDERS[node.op.name], Builder(specs)
    arguments: tuple[Argument, ...] = (*tensors(node), specs[node.inputs[0]].shape[0])
    size = specs[node.outputs[0]].size
    build.each(f"{folder}/naive", _constants(node, specs), arguments, size)
    return build.selection("naive", folder)


def _tiled(node: Node, specs: Specs) -> Selection | None:
    """Serves KRSC filters. Tiles never look at the batch."""
    x, w, _ = _operands(node, specs)
    if not _served(node, specs) or not channels_last(w):
        return None
    constants = _constants(node, specs)
    filters, channels = constants["K"] // constants["G"], constants["C"]
    depth, pixels = w.size // w.shape[0], constants["OH"] * constants["OW"]
    batches = x.shape[0]
    if node.op.name == "Local2d":
        tile = linear_tile(filters, depth, vectors=channels % 4 == 0)
        blocks = pixels * ceil_div(batches, tile["BM"]) * ceil_div(filters, tile["BN"])
    elif node.op.name == "Local2dDgrad":
        taps = constants["R"] * constants["S"]
        tile = linear_tile(channels, filters * taps, vectors=filters % 4 == 0)
        inputs = constants["H"] * constants["W"]
        blocks = inputs * ceil_div(batches, tile["BM"]) * ceil_div(channels, tile["BN"])
    else:
        tile = gradient_tile(filters, depth)
        blocks = pixels * ceil_div(filters, tile["BM"]) * ceil_div(depth, tile["BN"])
    return _launched(node, specs, constants, tile, blocks * constants["G"])


def _launched(
    node: Node, specs: Specs, constants: dict[str, int], tile: Tile, blocks: int
) -> Selection:
    folder, build = _FOLDERS[node.op.name], Builder(specs)
    arguments: tuple[Argument, ...] = (*tensors(node), specs[node.inputs[0]].shape[0])
    constants = constants | tile | {"POOL": 0, "BIAS": 0}
    build.add(f"{folder}/tiled", constants, arguments, blocks, threads(tile))
    return build.selection("tiled", folder)


def _operands(node: Node, specs: Specs) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Images, filters and output maps, whichever of them the op makes."""
    a, b, made = (specs[name] for name in (*node.inputs, *node.outputs))
    if node.op.name == "Local2d":
        return a, b, made
    return (made, b, a) if node.op.name == "Local2dDgrad" else (a, made, b)


def _constants(node: Node, specs: Specs) -> dict[str, int]:
    """The sizes of a convolution with the K filters of one output pixel."""
    x, w, y = _operands(node, specs)
    return sizes(cast(ConvGeometry, node.op), x, w, y) | {"K": y.shape[1]}


def _served(node: Node, specs: Specs) -> bool:
    every = [specs[name] for name in (*node.inputs, *node.outputs)]
    return set(dtypes(node, specs)) == {"float32"} and all(map(image_order, every))


LADDER = {
    (op, rung): build for op in _FOLDERS for rung, build in (("naive", _naive), ("tiled", _tiled))
}
