"""Kernels for pooling and its gradients.

``naive`` is a thread an element in any order of memory; ``tiled`` four neighbouring channels a
thread, channels last; ``warp`` a block for windows of many cells.
"""

from __future__ import annotations

from collections.abc import Sequence

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    THREADS,
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
    same_order,
    tensors,
)
from convloom.backends.pooling import divisor_constants, maximum_constants, window_constants
from convloom.ir import Node, Selection, TensorSpec

#: Cells of a window from which on a block sums them, and elements that 32 bits can count.
_MANY_CELLS, _INDEXED = 32, 2**31


def _max_pool(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 images, each row-major or NHWC."""
    if not _served(node, specs):
        return None
    y = specs[node.outputs[0]]
    build = Builder(specs)
    arguments: tuple[Argument, ...] = (*_max_arguments(node), y.shape[0])
    build.each("max_pool/naive", _max_constants(node, specs), arguments, y.size)
    return build.selection("naive", "max_pool")


def _tiled_max_pool(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 NHWC images of channels in fours."""
    y = specs[node.outputs[0]]
    if not _served(node, specs) or not _fours(node, specs, y):
        return None
    build = Builder(specs)
    constants = _max_constants(node, specs)
    build.add("max_pool/tiled", constants, _max_arguments(node), _blocks(y))
    return build.selection("tiled", "max_pool")


def _max_pool_grad(node: Node, specs: Specs) -> Selection | None:
    """Inputs that lie neither alike nor as the output are reordered first."""
    dx, build = specs[node.outputs[0]], Builder(specs)
    inputs: list[Argument] = [Tensor(name) for name in node.inputs]
    constants = _grad_constants(node, specs)
    if not _types_served(node, specs):
        return None
    if not _served(node, specs):
        places = [build.input(name, dx.layout) for name in node.inputs]
        inputs = [place for place in places if place is not None]
        constants["YROW"] = constants["XROW"]
    arguments: tuple[Argument, ...] = (*_grad_arguments(node, inputs), dx.shape[0])
    build.each("max_pool_grad/naive", constants, arguments, dx.size)
    return build.selection("naive", "max_pool_grad")


def _tiled_max_pool_grad(node: Node, specs: Specs) -> Selection | None:
    dx = specs[node.outputs[0]]
    if not _served(node, specs) or not _fours(node, specs, dx):
        return None
    build = Builder(specs)
    constants = _grad_constants(node, specs)
    inputs = [Tensor(name) for name in node.inputs]
    build.add("max_pool_grad/tiled", constants, _grad_arguments(node, inputs), _blocks(dx))
    return build.selection("tiled", "max_pool_grad")


def _avg_pool(node: Node, specs: Specs) -> Selection | None:
    x, y = specs[node.inputs[0]], specs[node.outputs[0]]
    if not _served(node, specs):
        return None
    build = Builder(specs)
    arguments: tuple[Argument, ...] = (*tensors(node), y.shape[0])
    build.each("avg_pool/naive", _avg_constants(node, x, y), arguments, y.size)
    return build.selection("naive", "avg_pool")


def _tiled_avg_pool(node: Node, specs: Specs) -> Selection | None:
    x, y = specs[node.inputs[0]], specs[node.outputs[0]]
    if not _served(node, specs) or not _fours(node, specs, y):
        return None
    build = Builder(specs)
    build.add("avg_pool/tiled", _avg_constants(node, x, y), tensors(node), _blocks(y))
    return build.selection("tiled", "avg_pool")


def _warp_avg_pool(node: Node, specs: Specs) -> Selection | None:
    """Serves NHWC images and windows of many cells, global pooling above all."""
    x, y = specs[node.inputs[0]], specs[node.outputs[0]]
    if not _served(node, specs) or not (channels_last(x) and channels_last(y)):
        return None
    constants = _avg_constants(node, x, y)
    cells = constants["KH"] * constants["KW"]
    if constants["ADAPTIVE"]:
        cells = x.shape[2] * x.shape[3] // (y.shape[2] * y.shape[3])
    if cells < _MANY_CELLS:
        return None
    build = Builder(specs)
    blocks = y.shape[0] * y.shape[2] * y.shape[3] * ceil_div(y.shape[1], 32)
    build.add("avg_pool/warp", constants, tensors(node), blocks, THREADS)
    return build.selection("warp", "avg_pool")


def _avg_pool_grad(node: Node, specs: Specs) -> Selection | None:
    dy, dx = specs[node.inputs[0]], specs[node.outputs[0]]
    if not _served(node, specs):
        return None
    build = Builder(specs)
    arguments: tuple[Argument, ...] = (*tensors(node), dx.shape[0])
    build.each("avg_pool_grad/naive", _avg_constants(node, dx, dy), arguments, dx.size)
    return build.selection("naive", "avg_pool_grad")


def _tiled_avg_pool_grad(node: Node, specs: Specs) -> Selection | None:
    dy, dx = specs[node.inputs[0]], specs[node.outputs[0]]
    if not _served(node, specs) or not _fours(node, specs, dx):
        return None
    build = Builder(specs)
    build.add("avg_pool_grad/tiled", _avg_constants(node, dx, dy), tensors(node), _blocks(dx))
    return build.selection("tiled", "avg_pool_grad")


def _served(node: Node, specs: Specs) -> bool:
    """Whether elements are float32 (an index int32), and maps that are read at one place lie in
    one order: maxima, their gradients and their indices; and with ties the images too."""
    if not _types_served(node, specs):
        return False
    if "Max" not in node.op.name:
        return True
    if not node.op.name.endswith("Grad"):
        return _alike(specs, *node.outputs)
    dy, *rest = node.inputs
    return _alike(specs, dy, rest[-1]) and _alike(specs, *rest[:-1], *node.outputs)


def _types_served(node: Node, specs: Specs) -> bool:
    """Whether elements are float32 (an index int32), in images of an order that kernels know."""
    types = {"float32", "int32"} if "Max" in node.op.name else {"float32"}
    names = (*node.inputs, *node.outputs)
    return set(dtypes(node, specs)) <= types and all(image_order(specs[n]) for n in names)


def _alike(specs: Specs, *names: str) -> bool:
    return all(same_order(specs[name].layout, specs[names[0]].layout) for name in names)


def _fours(node: Node, specs: Specs, walked: TensorSpec) -> bool:
    """Whether channels are last everywhere and in fours, and 32 bits count an image's elements."""
    every = [specs[name] for name in (*node.inputs, *node.outputs)]
    elements = walked.shape[1] * walked.shape[2] * walked.shape[3]
    return walked.shape[1] % 4 == 0 and elements < _INDEXED and all(map(channels_last, every))


def _blocks(walked: TensorSpec) -> int:
    """Blocks that walk images in fours of channels (device/pool.cuh)."""
    _, channels, height, width = walked.shape
    return walked.shape[0] * ceil_div(height * width * channels // 4, THREADS)


def _max_arguments(node: Node) -> tuple[Argument, ...]:
    """x, y and the index, or 0 where there is none."""
    x, y, *index = tensors(node)
    return (x, y, index[0] if index else ABSENT)


def _max_constants(node: Node, specs: Specs) -> dict[str, int]:
    x, y = specs[node.inputs[0]], specs[node.outputs[0]]
    kind = maximum_constants(node.op) | {"INDEX": int(len(node.outputs) > 1)}
    return _sizes(x, y) | window_constants(node.op) | kind


def _grad_arguments(node: Node, inputs: Sequence[Argument]) -> tuple[Argument, ...]:
    """dy, index, x, y and dx; what is not there is 0."""
    dy, *rest = inputs
    dx = Tensor(node.outputs[0])
    return (dy, *rest, ABSENT, ABSENT, dx) if len(rest) == 1 else (dy, ABSENT, *rest, dx)


def _grad_constants(node: Node, specs: Specs) -> dict[str, int]:
    dy, dx = specs[node.inputs[0]], specs[node.outputs[0]]
    return _sizes(dx, dy) | window_constants(node.op) | {"TIES": int(len(node.inputs) > 2)}


def _avg_constants(node: Node, x: TensorSpec, y: TensorSpec) -> dict[str, int]:
    return _sizes(x, y) | window_constants(node.op) | divisor_constants(node.op)


def _sizes(x: TensorSpec, y: TensorSpec) -> dict[str, int]:
    """The constants of device/pool.cuh for input x and output y, the window apart."""
    return {
        **{"C": x.shape[1], "H": x.shape[2], "W": x.shape[3]},
        **{"OH": y.shape[2], "OW": y.shape[3]},
        **{"XROW": int(not channels_last(x)), "YROW": int(not channels_last(y))},
    }


_RULES = {
    ("MaxPool2d", "naive"): _max_pool,
    ("MaxPool2d", "tiled"): _tiled_max_pool,
    ("MaxPool2dGrad", "naive"): _max_pool_grad,
    ("MaxPool2dGrad", "tiled"): _tiled_max_pool_grad,
    ("AvgPool2d", "naive"): _avg_pool,
    ("AvgPool2d", "tiled"): _tiled_avg_pool,
    ("AvgPool2d", "warp"): _warp_avg_pool,
    ("AvgPool2dGrad", "naive"): _avg_pool_grad,
    ("AvgPool2dGrad", "tiled"): _tiled_avg_pool_grad,
}
#: Adaptive pools run on the same kernels.
LADDER = _RULES | {(f"Adaptive{name}", rung): build for (name, rung), build in _RULES.items()}
