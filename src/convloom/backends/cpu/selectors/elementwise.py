"""Kernels for ops that treat every element alike: activations, sums, dropout, their gradients."""

from __future__ import annotations

import math
from typing import cast

from convloom.backends.cpu.launch import Tensor, Workspace
from convloom.backends.cpu.selectors.common import (
    CHUNK,
    Builder,
    Specs,
    ceil_div,
    dtypes,
    same_order,
)
from convloom.backends.selecting import activation_number
from convloom.ir import NHWC, Node, Selection
from convloom.ops import (
    Activation,
    ActivationGrad,
    Add,
    Dropout,
    DropoutGrad,
    FusedSum,
    WeightedSum,
)

_SOURCES = {"ReLU": "relu", "ReLUGrad": "relu_grad", "Mul": "product"}
#: Elements of dropout an item takes; a multiple of the words drawn at once.
_DROPOUT_CHUNK = 4096


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32; inputs in another order than the output are reordered first."""
    if isinstance(node.op, Dropout):
        return _dropout(node, specs)
    if isinstance(node.op, DropoutGrad):
        return _dropout_grad(node, specs)
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    (output,) = node.outputs
    build = Builder(specs)
    places = [build.input(name, specs[output].layout) for name in node.inputs]
    inputs = [place for place in places if place is not None]
    if len(inputs) < len(places):
        return None
    if isinstance(node.op, Activation | ActivationGrad):
        return _activation(node.op, build, inputs, Tensor(output))
    if isinstance(node.op, Add | WeightedSum | FusedSum):
        return _sum(node.op, build, inputs, Tensor(output))
    size, source = specs[output].size, _SOURCES[node.op.name]
    arguments = (*inputs, Tensor(output), size)
    build.add(source, {"CHUNK": CHUNK}, arguments, ceil_div(size, CHUNK))
    return build.selection(source)


def _activation(
    op: Activation | ActivationGrad, build: Builder, inputs: list[Tensor | Workspace], to: Tensor
) -> Selection:
    """A gradient that reads nothing but dy is given it twice."""
    backward = isinstance(op, ActivationGrad)
    source = "activation_grad" if backward else "activation"
    read = (inputs[0], inputs[-1]) if backward else (inputs[0],)
    size = build.specs[to.name].size
    constants = {"CHUNK": CHUNK, "KIND": activation_number(op.kind)}
    arguments = (*read, to, size, float(op.a), float(op.b))
    build.add(source, constants, arguments, ceil_div(size, CHUNK))
    return build.selection(source)


def _sum(
    op: Add | WeightedSum | FusedSum, build: Builder, inputs: list[Tensor | Workspace], to: Tensor
) -> Selection:
    """Any number of inputs, in one pass."""
    coefficients = getattr(op, "coefficients", (1.0,) * len(inputs))
    constants = {
        "CHUNK": CHUNK,
        "COUNT": len(inputs),
        "SCALED": int(set(coefficients) != {1.0}),
        "RELU": int(isinstance(op, FusedSum)),
    }
    size = build.specs[to.name].size
    arguments = (*inputs, to, size, *map(float, coefficients))
    build.add("weighted_sum", constants, arguments, ceil_div(size, CHUNK))
    return build.selection("weighted_sum")


def _dropout(node: Node, specs: Specs) -> Selection | None:
    """Serves row-major tensors of any rank, and NHWC images."""
    op = cast(Dropout, node.op)
    if dtypes(node, specs) != ("float32", "uint64", "float32", "uint8"):
        return None
    y, mask = (specs[name] for name in node.outputs)
    build = Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    channels_last = same_order(y.layout, NHWC)
    if x is None or not same_order(y.layout, mask.layout):
        return None
    if not channels_last and y.layout.order is not None:
        return None
    channels, pixels = (y.shape[1], math.prod(y.shape[2:])) if channels_last else (1, 1)
    counter, outputs = Tensor(node.inputs[1]), tuple(Tensor(name) for name in node.outputs)
    facts = (y.size, op.threshold, op.stream, float(op.scale), channels, pixels)
    constants = {"CHUNK": _DROPOUT_CHUNK, "NHWC": int(channels_last)}
    items = ceil_div(y.size, _DROPOUT_CHUNK)
    build.add("dropout", constants, (x, counter, *outputs, *facts), items)
    return build.selection("dropout")


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
    build.add("dropout_grad", {"CHUNK": CHUNK}, arguments, ceil_div(dx.size, CHUNK))
    return build.selection("dropout_grad")
