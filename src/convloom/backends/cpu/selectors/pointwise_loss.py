"""Kernels for losses that compare each element with its target, and for class numbers as rows."""

from __future__ import annotations

from convloom.backends.cpu.launch import Tensor
from convloom.backends.cpu.selectors.common import CHUNK, Builder, Specs, ceil_div, dtypes
from convloom.backends.selecting import loss_number
from convloom.ir import Node, Selection
from convloom.ops import OneHot, PointwiseLoss, PointwiseLossGrad

#: Elements of class rows an item takes, about.
_ROWS = 8192


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32; a target in another order than the output is reordered first."""
    if isinstance(node.op, OneHot):
        return _one_hot(node, node.op, specs)
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    op, x = node.op, specs[node.inputs[0]]
    assert isinstance(op, PointwiseLoss | PointwiseLossGrad)
    backward = isinstance(op, PointwiseLossGrad)
    compared = node.inputs[:-1] if backward else node.inputs
    build = Builder(specs)
    layout = specs[node.outputs[0]].layout if backward else x.layout
    places = [build.input(name, layout) for name in compared]
    inputs = [place for place in places if place is not None]
    if len(inputs) < len(places):
        return None
    read, made = (inputs[0], inputs[-1]), Tensor(node.outputs[0])
    constants = {"CHUNK": CHUNK, "KIND": loss_number(op.kind)}
    items, divisor = ceil_div(x.size, CHUNK), op.divisor(x.shape)
    if backward:
        facts = (x.size, float(op.a), float(max(divisor, 1)))
        arguments = (*read, Tensor(node.inputs[-1]), made, *facts)
        build.add("pointwise_loss_grad", constants, arguments, items)
        return build.selection("pointwise_loss_grad")
    partial = build.workspace(8 * max(items, 1))
    build.add("pointwise_loss", constants, (*read, partial, x.size, float(op.a)), items)
    build.add("mean_of_partials", {}, (partial, made, items, divisor), 1)
    return build.selection("pointwise_loss")


def _one_hot(node: Node, op: OneHot, specs: Specs) -> Selection | None:
    rows = specs[node.outputs[0]]
    if rows.layout.order is not None:
        return None
    each = max(1, _ROWS // op.classes)
    build, samples = Builder(specs), rows.shape[0]
    arguments = (Tensor(node.inputs[0]), Tensor(node.outputs[0]), samples, op.classes, each)
    build.add("one_hot", {}, arguments, ceil_div(samples, each))
    return build.selection("one_hot")
