"""Kernels for softmax along an axis, its logarithm, and their gradients."""

from __future__ import annotations

from convloom.backends.cpu.launch import Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, ceil_div, dtypes
from convloom.backends.selecting import around
from convloom.ir import Node, Selection
from convloom.ops import Softmax, SoftmaxGrad

#: Elements an item takes where they lie together, about.
_TOGETHER = 8192
#: Positions across which vectors run that an item takes, where they do not.
_BLOCK = 64


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 in any order of memory; inputs in another order are reordered first."""
    op, output = node.op, specs[node.outputs[0]]
    assert isinstance(op, Softmax | SoftmaxGrad)
    extents = around(output, op.dim)
    if set(dtypes(node, specs)) != {"float32"} or extents is None:
        return None
    build = Builder(specs)
    places = [build.input(name, output.layout) for name in node.inputs]
    inputs = [place for place in places if place is not None]
    if len(inputs) < len(places):
        return None
    outer, classes, inner = extents
    together = inner == 1
    rows = max(1, _TOGETHER // max(classes, 1))
    items = ceil_div(outer, rows) if together else outer * ceil_div(inner, _BLOCK)
    constants = {"LOG": int(op.log), "TOGETHER": int(together), "BLOCK": _BLOCK}
    source = "softmax_grad" if isinstance(op, SoftmaxGrad) else "softmax"
    arguments = (*inputs, Tensor(node.outputs[0]), outer, classes, inner, rows)
    build.add(source, constants, arguments, items if output.size else 0)
    return build.selection(source)
