"""Kernels for the fully connected layer and its gradients, fused or not.

A weight behind a Flatten is stored in the order of the flattened image; input and weight must
then be in the same order, and the kernels see plain row-major matrices.
"""

from __future__ import annotations

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    dtypes,
    row_major,
    tensors,
)
from convloom.backends.cuda.selectors.partial import PartialSums
from convloom.backends.cuda.selectors.tiles import gradient_tile, linear_tile, stages, threads
from convloom.backends.selecting import activation_constants, mask_constants
from convloom.ir import Node, Selection

#: {op: (index of the activation as wide as the weight, index of the weight)}; outputs count after
#: inputs.
_WIDE = {
    "Linear": (0, 1),
    "FusedLinear": (0, 1),
    "LinearDgrad": (-1, 1),
    "FusedLinearDgrad": (-1, 1),
    "LinearWgrad": (0, 2),
    "FusedLinearWgrad": (0, 2),
}

#: Of the warp rung: the most outputs it serves, and its fewest inputs.
_FEW_OUTPUTS, _MANY_INPUTS = 16, 256
#: Samples and warps of a block of it, of a small batch and of others; and what a small batch is.
_LONE, _SHARED, _SMALL_BATCH = (1, 16), (4, 8), 128
#: Threads of a block of the weight gradient.
_WGRAD_THREADS = 128


def _forward(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 of any size but empty weights."""
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    constants = {"I": width, "O": outputs, "BIAS": int(len(node.inputs) > 2)}
    build.each("linear_fprop/naive", constants, _forward_arguments(node, n), n * outputs)
    return build.selection("naive", "linear_fprop")


def _dgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    constants = {"I": width, "O": outputs}
    arguments: tuple[Argument, ...] = (*tensors(node), n)
    build.each("linear_dgrad/naive", constants, arguments, n * width)
    return build.selection("naive", "linear_dgrad")


def _wgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    constants = {"I": width, "O": outputs}
    arguments: tuple[Argument, ...] = (*tensors(node), n)
    build.each("linear_wgrad/naive", constants, arguments, outputs * width)
    return build.selection("naive", "linear_wgrad")


def _fused_forward(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    build, (n, _, outputs) = Builder(specs), _sizes(node, specs)
    arguments = _forward_arguments(node, n)
    build.each("linear_fprop/fused", _forward_constants(node, specs), arguments, n * outputs)
    return build.selection("fused", "linear_fprop")


def _fused_dgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    constants = {"I": width, "O": outputs, **mask_constants(node.op)}
    build.each("linear_dgrad/fused", constants, _dgrad_arguments(node, n), n * width)
    return build.selection("fused", "linear_dgrad")


def _fused_wgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    constants = {"I": width, "O": outputs}
    arguments: tuple[Argument, ...] = (*tensors(node), n)
    build.each("linear_wgrad/fused", constants, arguments, outputs * (width + 1))
    return build.selection("fused", "linear_wgrad")


def _tiled_forward(node: Node, specs: Specs) -> Selection | None:
    return _forward_by_tiles(node, specs, "tiled")


def _async_forward(node: Node, specs: Specs) -> Selection | None:
    """Serves inputs that can be read four at a time; layers of few outputs stay with warps."""
    _, width, outputs = _sizes(node, specs)
    fours = width % 4 == 0 and outputs > _FEW_OUTPUTS
    return _forward_by_tiles(node, specs, "async") if fours else None


def _forward_by_tiles(node: Node, specs: Specs, rung: str) -> Selection | None:
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    tile = linear_tile(outputs, width, vectors=width % 4 == 0)
    constants = _forward_constants(node, specs) | tile
    blocks = ceil_div(n, tile["BM"]) * ceil_div(outputs, tile["BN"])
    shared = 0
    if rung == "async":
        constants["STAGES"], shared = stages(tile)
    source, arguments = f"linear_fprop/{rung}", _forward_arguments(node, n)
    build.add(source, constants, arguments, blocks, threads(tile), shared)
    return build.selection(rung, "linear_fprop")


def _tiled_dgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    tile = linear_tile(width, outputs, vectors=outputs % 4 == 0)
    constants = {"I": width, "O": outputs, **mask_constants(node.op)} | tile
    blocks = ceil_div(n, tile["BM"]) * ceil_div(width, tile["BN"])
    build.add("linear_dgrad/tiled", constants, _dgrad_arguments(node, n), blocks, threads(tile))
    return build.selection("tiled", "linear_dgrad")


def _warp_forward(node: Node, specs: Specs) -> Selection | None:
    """Serves layers of few outputs and many inputs."""
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    if outputs > _FEW_OUTPUTS or width < _MANY_INPUTS:
        return None
    # Blocks of one sample read all weights each, but a small batch has few blocks.
    constants, arguments = _forward_constants(node, specs), _forward_arguments(node, n)
    for samples, warps in (_LONE, _SHARED):
        own = constants | {"SAMPLES": samples, "WARPS": warps}
        build.add("linear_fprop/warp", own, arguments, ceil_div(n, samples), 32 * warps)
    if n:
        build.choose(last=n > _SMALL_BATCH)
    return build.selection("warp", "linear_fprop")


def _tiled_wgrad(node: Node, specs: Specs) -> Selection | None:
    """Large batches are split into chunks, whose partial sums a second launch adds up."""
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    bias = len(node.outputs) > 1
    tile = gradient_tile(outputs, width + bias)
    tiles = ceil_div(outputs, tile["BM"]) * ceil_div(width + bias, tile["BN"])
    split = PartialSums(build, node, (outputs, width, 1, 1), tiles, n, bias)
    constants = {"I": width, "O": outputs, "BIAS": int(bias)} | tile
    x, dy = (Tensor(name) for name in node.inputs)
    arguments = (x, dy, *split.outputs, n, split.length, split.stride)
    build.add("linear_wgrad/tiled", constants, arguments, tiles * split.count, threads(tile))
    split.add_up()
    return build.selection("tiled", "linear_wgrad")


def _warp_wgrad(node: Node, specs: Specs) -> Selection | None:
    """Serves layers of few outputs and many inputs, in fours."""
    if not _served(node, specs):
        return None
    build, (n, width, outputs) = Builder(specs), _sizes(node, specs)
    if outputs > _FEW_OUTPUTS or width < _MANY_INPUTS or width % 4:
        return None
    bias = len(node.outputs) > 1
    tiles = ceil_div(width // 4, _WGRAD_THREADS)
    split = PartialSums(build, node, (outputs, width, 1, 1), tiles, n, bias)
    constants = {"I": width, "O": outputs, "BIAS": int(bias)}
    x, dy = (Tensor(name) for name in node.inputs)
    arguments = (x, dy, *split.outputs, n, split.length, split.stride)
    build.add("linear_wgrad/warp", constants, arguments, tiles * split.count, _WGRAD_THREADS)
    split.add_up()
    return build.selection("warp", "linear_wgrad")


def _forward_constants(node: Node, specs: Specs) -> dict[str, int]:
    _, width, outputs = _sizes(node, specs)
    return {
        "I": width,
        "O": outputs,
        "BIAS": int(len(node.inputs) > 2),
        **activation_constants(node.op),
    }


def _dgrad_arguments(node: Node, n: int) -> tuple[Argument, ...]:
    dy, w, *mask = (Tensor(name) for name in node.inputs)
    return (dy, w, mask[0] if mask else ABSENT, Tensor(node.outputs[0]), n)


def _forward_arguments(node: Node, n: int) -> tuple[Argument, ...]:
    bias = Tensor(node.inputs[2]) if len(node.inputs) > 2 else ABSENT
    return (Tensor(node.inputs[0]), Tensor(node.inputs[1]), bias, Tensor(node.outputs[0]), n)


def _sizes(node: Node, specs: Specs) -> tuple[int, int, int]:
    """Samples, inputs and outputs of the layer."""
    names = (*node.inputs, *node.outputs)
    wide, weight = _WIDE[node.op.name]
    outputs, width = specs[names[weight]].shape
    return specs[names[wide]].shape[0], width, outputs


def _served(node: Node, specs: Specs) -> bool:
    names = (*node.inputs, *node.outputs)
    wide, weight = (names[at] for at in _WIDE[node.op.name])
    if set(dtypes(node, specs)) != {"float32"} or specs[weight].size == 0:
        return False
    alike = {wide, weight} | ({node.inputs[2]} if _masked(node) else set())
    layouts = {(specs[name].layout.order, specs[name].layout.view) for name in alike}
    return len(layouts) == 1 and all(row_major(specs[name]) for name in set(names) - alike)


def _masked(node: Node) -> bool:
    return getattr(node.op, "mask", "none") != "none"


LADDER = {
    ("Linear", "naive"): _forward,
    ("LinearDgrad", "naive"): _dgrad,
    ("LinearWgrad", "naive"): _wgrad,
    ("Linear", "tiled"): _tiled_forward,
    ("Linear", "warp"): _warp_forward,
    ("Linear", "async"): _async_forward,
    ("LinearDgrad", "tiled"): _tiled_dgrad,
    ("LinearWgrad", "tiled"): _tiled_wgrad,
    ("LinearWgrad", "warp"): _warp_wgrad,
    ("FusedLinear", "fused"): _fused_forward,
    ("FusedLinearDgrad", "fused"): _fused_dgrad,
    ("FusedLinearWgrad", "fused"): _fused_wgrad,
    ("FusedLinear", "tiled"): _tiled_forward,
    ("FusedLinear", "warp"): _warp_forward,
    ("FusedLinear", "async"): _async_forward,
    ("FusedLinearDgrad", "tiled"): _tiled_dgrad,
    ("FusedLinearWgrad", "tiled"): _tiled_wgrad,
    ("FusedLinearWgrad", "warp"): _warp_wgrad,
}
