"""Kernels of what draws as many numbers as there are elements or channels: dropout, noise."""

from __future__ import annotations

import math

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import (
    CHUNK,
    Builder,
    Specs,
    ceil_div,
    dtypes,
    same_order,
)
from convloom.ir import NHWC, Node, Selection, TensorSpec
from convloom.ops import ChannelDropout, ChannelDropoutGrad, Dropout, DropoutGrad, NoisyReLU

#: Elements of a mask an item takes; a multiple of the words drawn at once.
_DRAWN = 4096


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32; inputs in another order than the output are reordered first."""
    op = node.op
    if isinstance(op, Dropout):
        return _dropout(node, op, specs)
    if isinstance(op, DropoutGrad):
        return _dropout_grad(node, op, specs)
    if isinstance(op, NoisyReLU):
        return _noise(node, op, specs)
    assert isinstance(op, ChannelDropout | ChannelDropoutGrad)
    return _channels(node, op, specs)


def _dropout(node: Node, op: Dropout, specs: Specs) -> Selection | None:
    """Serves row-major tensors of any rank, and NHWC images."""
    if dtypes(node, specs) != ("float32", "uint64", "float32", "uint8"):
        return None
    y, mask = (specs[name] for name in node.outputs)
    build = Builder(specs)
    x, numbered = build.input(node.inputs[0], y.layout), _numbered(y)
    if x is None or numbered is None or not same_order(y.layout, mask.layout):
        return None
    counter, outputs = Tensor(node.inputs[1]), tuple(Tensor(name) for name in node.outputs)
    facts = (y.size, op.threshold, op.stream, float(op.scale), *numbered)
    constants = {"CHUNK": _DRAWN, "NHWC": int(same_order(y.layout, NHWC))}
    items = ceil_div(y.size, _DRAWN)
    build.add("dropout", constants, (x, counter, *outputs, *facts), items)
    return build.selection("dropout")


def _noise(node: Node, op: NoisyReLU, specs: Specs) -> Selection | None:
    """Serves row-major tensors of any rank, and NHWC images."""
    y = specs[node.outputs[0]]
    build = Builder(specs)
    x, numbered = build.input(node.inputs[0], y.layout), _numbered(y)
    if x is None or numbered is None or {specs[node.inputs[0]].dtype, y.dtype} != {"float32"}:
        return None
    counter = Tensor(node.inputs[1]) if not op.fixed else 0
    arguments = (x, counter, Tensor(node.outputs[0]), y.size, op.stream, *numbered)
    last = int(same_order(y.layout, NHWC))
    constants = {"CHUNK": _DRAWN, "NHWC": last, "FIXED": int(op.fixed)}
    build.add("noisy_relu", constants, arguments, ceil_div(y.size, _DRAWN))
    return build.selection("noisy_relu")


def _numbered(y: TensorSpec) -> tuple[int, int] | None:
    """Channels and pixels, by which kernels number a tensor's elements; 1 and 1 where they lie in
    this order, None for orders that kernels do not know."""
    if same_order(y.layout, NHWC):
        return y.shape[1], math.prod(y.shape[2:])
    return (1, 1) if y.layout.order is None else None


def _dropout_grad(node: Node, op: DropoutGrad, specs: Specs) -> Selection | None:
    if dtypes(node, specs) != ("float32", "uint8", "float32"):
        return None
    mask, dx = specs[node.inputs[1]], specs[node.outputs[0]]
    build = Builder(specs)
    dy = build.input(node.inputs[0], dx.layout)
    if dy is None or not same_order(mask.layout, dx.layout):
        return None
    arguments = (dy, Tensor(node.inputs[1]), Tensor(node.outputs[0]), dx.size, float(op.scale))
    build.add("dropout_grad", {"CHUNK": CHUNK}, arguments, ceil_div(dx.size, CHUNK))
    return build.selection("dropout_grad")


def _channels(
    node: Node, op: ChannelDropout | ChannelDropoutGrad, specs: Specs
) -> Selection | None:
    """Serves NHWC images, and row-major tensors of any rank."""
    y = specs[node.outputs[0]]
    drawn = isinstance(op, ChannelDropout)
    mask = node.outputs[1] if isinstance(op, ChannelDropout) else node.inputs[1]
    last = len(y.shape) == 4 and same_order(y.layout, NHWC)
    if specs[mask].layout.order is not None or not (last or y.layout.order is None):
        return None
    build = Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    if x is None or {specs[node.inputs[0]].dtype, y.dtype} != {"float32"}:
        return None
    size, (samples, channels) = specs[mask].size, y.shape[:2]
    if isinstance(op, ChannelDropout):
        draw: tuple[Argument, ...] = (Tensor(node.inputs[1]), Tensor(mask), size)
        draw = (*draw, op.threshold, op.stream)
        build.add("dropout_mask", {"CHUNK": _DRAWN}, draw, ceil_div(size, _DRAWN))
    pixels = math.prod(y.shape[2:])
    facts = (samples, channels, pixels, float(op.scale))
    arguments = (x, Tensor(mask), Tensor(node.outputs[0]), *facts)
    build.add("scale_channels", {"LAST": int(last)}, arguments, samples if last else size)
    return build.selection("channel_dropout" if drawn else "scale_channels")
