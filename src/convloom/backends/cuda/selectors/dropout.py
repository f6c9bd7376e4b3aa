"""Kernels of what draws as many numbers as there are elements or channels: dropout, noise."""

from __future__ import annotations

import math
from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
    row_major,
    same_order,
)
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops import ChannelDropout, ChannelDropoutGrad, Dropout, DropoutGrad, NoisyReLU


def _dropout(node: Node, specs: Specs) -> Selection | None:
    """Serves row-major tensors of any rank, and NHWC images."""
    return _elements(node, specs, "naive", 1)


def _tiled_dropout(node: Node, specs: Specs) -> Selection | None:
    """Serves row-major tensors, and NHWC images whose pixels come in fours."""
    y = specs[node.outputs[0]]
    if channels_last(y) and math.prod(y.shape[2:]) % 4:
        return None
    return _elements(node, specs, "tiled", 4)


def _elements(node: Node, specs: Specs, rung: str, each: int) -> Selection | None:
    op = cast(Dropout, node.op)
    if dtypes(node, specs) != ("float32", "uint64", "float32", "uint8"):
        return None
    y, mask = (specs[name] for name in node.outputs)
    build = Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    if x is None or not same_order(y.layout, mask.layout) or not image_order(y):
        return None
    constants = _numbered(y)
    tensors = (x, Tensor(node.inputs[1]), *(Tensor(name) for name in node.outputs))
    facts = (y.size, op.threshold, op.stream, float(op.scale))
    build.each(f"dropout/{rung}", constants, (*tensors, *facts), ceil_div(y.size, each))
    return build.selection(rung, "dropout")


def _numbered(y: TensorSpec) -> dict[str, int]:
    """The constants by which kernels number a tensor's elements."""
    last = channels_last(y)
    channels, pixels = (y.shape[1], math.prod(y.shape[2:])) if last else (1, 1)
    return {"C": channels, "PIXELS": pixels, "ROW": int(not last)}


def _noise(node: Node, specs: Specs) -> Selection | None:
    """Serves row-major tensors of any rank, and NHWC images."""
    op, y = cast(NoisyReLU, node.op), specs[node.outputs[0]]
    build = Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    if x is None or not image_order(y) or {specs[node.inputs[0]].dtype, y.dtype} != {"float32"}:
        return None
    counter = ABSENT if op.fixed else Tensor(node.inputs[1])
    arguments = (x, counter, Tensor(node.outputs[0]), y.size, op.stream)
    build.each("noisy_relu/naive", {**_numbered(y), "FIXED": int(op.fixed)}, arguments, y.size)
    return build.selection("naive", "noisy_relu")


def _dropout_grad(node: Node, specs: Specs) -> Selection | None:
    return _gradient(node, specs, "naive", 1)


def _tiled_dropout_grad(node: Node, specs: Specs) -> Selection | None:
    return _gradient(node, specs, "tiled", 4)


def _gradient(node: Node, specs: Specs, rung: str, each: int) -> Selection | None:
    op = cast(DropoutGrad, node.op)
    if dtypes(node, specs) != ("float32", "uint8", "float32"):
        return None
    mask, dx = specs[node.inputs[1]], specs[node.outputs[0]]
    build = Builder(specs)
    dy = build.input(node.inputs[0], dx.layout)
    if dy is None or not same_order(mask.layout, dx.layout):
        return None
    arguments = (dy, Tensor(node.inputs[1]), Tensor(node.outputs[0]), dx.size, float(op.scale))
    build.each(f"dropout_grad/{rung}", {}, arguments, ceil_div(dx.size, each))
    return build.selection(rung, "dropout_grad")


def _channels(node: Node, specs: Specs) -> Selection | None:
    """Serves NHWC images, and row-major tensors of any rank."""
    return _scaled(node, specs, "naive", 1)


def _tiled_channels(node: Node, specs: Specs) -> Selection | None:
    """Serves what lies in fours: channels of NHWC images, else pixels."""
    y = specs[node.outputs[0]]
    together = y.shape[1] if channels_last(y) else math.prod(y.shape[2:])
    return None if together % 4 else _scaled(node, specs, "tiled", 4)


def _scaled(node: Node, specs: Specs, rung: str, each: int) -> Selection | None:
    op, y = node.op, specs[node.outputs[0]]
    assert isinstance(op, ChannelDropout | ChannelDropoutGrad)
    mask = node.outputs[1] if isinstance(op, ChannelDropout) else node.inputs[1]
    if not row_major(specs[mask]) or not image_order(y):
        return None
    build = Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    if x is None or {specs[node.inputs[0]].dtype, y.dtype} != {"float32"}:
        return None
    if isinstance(op, ChannelDropout):
        size = specs[mask].size
        places: tuple[Argument, ...] = (Tensor(node.inputs[1]), Tensor(mask), size)
        draw = (*places, op.threshold, op.stream)
        build.each("dropout_mask/naive", {}, draw, ceil_div(size, 4))
    facts = (y.size, y.shape[1], math.prod(y.shape[2:]), float(op.scale))
    arguments = (x, Tensor(mask), Tensor(node.outputs[0]), *facts)
    constants = {"LAST": int(channels_last(y))}
    build.each(f"scale_channels/{rung}", constants, arguments, ceil_div(y.size, each))
    return build.selection(rung, "scale_channels")


LADDER = {
    ("Dropout", "naive"): _dropout,
    ("Dropout", "tiled"): _tiled_dropout,
    ("DropoutGrad", "naive"): _dropout_grad,
    ("DropoutGrad", "tiled"): _tiled_dropout_grad,
    ("ChannelDropout", "naive"): _channels,
    ("ChannelDropout", "tiled"): _tiled_channels,
    ("ChannelDropoutGrad", "naive"): _channels,
    ("NoisyReLU", "naive"): _noise,
    ("ChannelDropoutGrad", "tiled"): _tiled_channels,
}
