"""Kernels for pooling and its gradients, on NHWC images."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, ceil_div, dtypes, same_order
from convloom.ir import NHWC, Node, Selection
from convloom.ops import AvgPool2d, AvgPool2dGrad, MaxPool2d

#: Channels an item of the max-pool gradient owns: all of most images, whose memory is then
#: written in one go.
_CHANNEL_BLOCK = 256


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 images; row-major inputs are reordered first."""
    expected, build_phases = _KERNELS[node.op.name]
    images = [specs[name] for name in node.outputs]
    if dtypes(node, specs) != expected or any(not same_order(s.layout, NHWC) for s in images):
        return None
    build = Builder(specs)
    inputs = [build.input(name, NHWC) for name in node.inputs]
    arguments = tuple(place for place in inputs if place is not None)
    if len(arguments) < len(inputs):
        return None
    build_phases(build, node, (*arguments, *(Tensor(name) for name in node.outputs)))
    return build.selection(build.phases[-1].kernel.source)


def _max_pool(build: Builder, node: Node, arguments: tuple[Argument, ...]) -> None:
    op = cast(MaxPool2d, node.op)
    _, channels, height, width = build.specs[node.inputs[0]].shape
    n, _, rows, cols = build.specs[node.outputs[0]].shape
    constants = {
        "C": channels,
        **_pairs(K=op.kernel, S=op.stride, P=op.padding, D=op.dilation),
    }
    build.add("max_pool", constants, (*arguments, height, width, rows, cols), n * rows)


def _max_pool_grad(build: Builder, node: Node, arguments: tuple[Argument, ...]) -> None:
    n, channels, height, width = build.specs[node.outputs[0]].shape
    rows, cols = build.specs[node.inputs[0]].shape[2:]
    block = min(channels, _CHANNEL_BLOCK)
    items = n * ceil_div(channels, block) if block else 0
    constants = {"C": channels, "CB": block}
    build.add("max_pool_grad", constants, (*arguments, height * width, rows * cols), items)


def _avg_pool(build: Builder, node: Node, arguments: tuple[Argument, ...]) -> None:
    _, channels, height, width = build.specs[node.inputs[0]].shape
    n, _, rows, cols = build.specs[node.outputs[0]].shape
    constants = _avg_constants(cast(AvgPool2d, node.op), channels)
    build.add("avg_pool", constants, (*arguments, height, width, rows, cols), n * rows)


def _avg_pool_grad(build: Builder, node: Node, arguments: tuple[Argument, ...]) -> None:
    n, channels, height, width = build.specs[node.outputs[0]].shape
    rows, cols = build.specs[node.inputs[0]].shape[2:]
    constants = _avg_constants(cast(AvgPool2dGrad, node.op), channels)
    build.add("avg_pool_grad", constants, (*arguments, height, width, rows, cols), n * height)


def _avg_constants(op: AvgPool2d | AvgPool2dGrad, channels: int) -> dict[str, int]:
    pairs = _pairs(K=op.kernel, S=op.stride, P=op.padding)
    return {"C": channels, **pairs, "COUNT_PADDING": int(op.count_include_pad)}


def _pairs(**pairs: tuple[int, int]) -> dict[str, int]:
    """``K=(3, 5)`` as ``{"KH": 3, "KW": 5}``."""
    return {f"{n}{axis}": pair[i] for n, pair in pairs.items() for i, axis in enumerate("HW")}


_Build = Callable[[Builder, Node, tuple[Argument, ...]], None]
_KERNELS: dict[str, tuple[tuple[str, ...], _Build]] = {
    "MaxPool2d": (("float32", "float32", "int32"), _max_pool),
    "MaxPool2dGrad": (("float32", "int32", "float32"), _max_pool_grad),
    "AvgPool2d": (("float32", "float32"), _avg_pool),
    "AvgPool2dGrad": (("float32", "float32"), _avg_pool_grad),
}
