"""Kernels for ops that treat every element alike: ReLU, Add, Dropout, and their gradients."""

from __future__ import annotations

import math
from typing import cast

from convloom.backends.cuda.launch import Tensor
from convloom.backends.cuda.selectors.common import (
    Builder,
    Specs,
    channels_last,
    dtypes,
    image_order,
    same_order,
)
from convloom.ir import Node, Selection
from convloom.ops import Dropout, DropoutGrad

_SOURCES = {"ReLU": "relu", "ReLUGrad": "relu_grad", "Add": "add"}


def _plain(node: Node, specs: Specs) -> Selection | None:
    """Serves float32; inputs in another order than the output are reordered first."""
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    (output,) = node.outputs
    build = Builder(specs)
    places = [build.input(name, specs[output].layout) for name in node.inputs]
    arguments = [place for place in places if place is not None]
    if len(arguments) < len(places):
        return None
    size, source = specs[output].size, _SOURCES[node.op.name]
    build.each(f"{source}/naive", {}, (*arguments, Tensor(output), size), size)
    return build.selection("naive", source)


def _dropout(node: Node, specs: Specs) -> Selection | None:
    """Serves row-major tensors of any rank, and NHWC images."""
    op = cast(Dropout, node.op)
    if dtypes(node, specs) != ("float32", "uint64", "float32", "uint8"):
        return None
    y, mask = (specs[name] for name in node.outputs)
    build = Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    if x is None or not same_order(y.layout, mask.layout) or not image_order(y):
        return None
    last = channels_last(y)
    channels, pixels = (y.shape[1], math.prod(y.shape[2:])) if last else (1, 1)
    constants = {"C": channels, "PIXELS": pixels, "ROW": int(not last)}
    tensors = (x, Tensor(node.inputs[1]), *(Tensor(name) for name in node.outputs))
    facts = (y.size, op.threshold, op.stream, float(op.scale))
    build.each("dropout/naive", constants, (*tensors, *facts), y.size)
    return build.selection("naive", "dropout")


def _dropout_grad(node: Node, specs: Specs) -> Selection | None:
    op = cast(DropoutGrad, node.op)
    if dtypes(node, specs) != ("float32", "uint8", "float32"):
        return None
    mask, dx = specs[node.inputs[1]], specs[node.outputs[0]]
    build = Builder(specs)
    dy = build.input(node.inputs[0], dx.layout)
    if dy is None or not same_order(mask.layout, dx.layout):
        return None
    arguments = (dy, Tensor(node.inputs[1]), Tensor(node.outputs[0]), dx.size, float(op.scale))
    build.each("dropout_grad/naive", {}, arguments, dx.size)
    return build.selection("naive", "dropout_grad")


LADDER = {
    ("ReLU", "naive"): _plain,
    ("ReLUGrad", "naive"): _plain,
    ("Add", "naive"): _plain,
    ("Dropout", "naive"): _dropout,
    ("DropoutGrad", "naive"): _dropout_grad,
}
