"""Kernels for softmax along an axis, its logarithm, and their gradients."""

from __future__ import annotations

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import Builder, Specs, ceil_div, dtypes
from convloom.backends.selecting import around
from convloom.ir import Node, Selection
from convloom.ops import Softmax, SoftmaxGrad

#: Elements of a row that a lane keeps in registers.
_KEPT = 32


def _naive(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 in any order of memory; inputs in another order are reordered first."""
    return _built(node, specs, "naive")


def _warp(node: Node, specs: Specs) -> Selection | None:
    """Serves an axis whose elements lie together; elsewhere naive's threads read neighbours."""
    op = node.op
    assert isinstance(op, Softmax | SoftmaxGrad)
    extents = around(specs[node.outputs[0]], op.dim)
    if extents is None or extents[2] != 1:
        return None
    return _built(node, specs, "warp")


def _built(node: Node, specs: Specs, rung: str) -> Selection | None:
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
    rows = outer * inner if output.size else 0
    constants, facts = {"LOG": int(op.log)}, [rows, classes]
    threads = rows
    if rung == "warp":
        constants["LANES"] = min(32, 1 << max(classes - 1, 0).bit_length())
        each = ceil_div(classes, constants["LANES"])
        constants["EACH"] = each if each <= _KEPT else 0
        threads = rows * constants["LANES"]
    else:
        facts.append(inner)
    source = "softmax_grad" if isinstance(op, SoftmaxGrad) else "softmax"
    arguments: tuple[Argument, ...] = (*inputs, Tensor(node.outputs[0]), *facts)
    build.each(f"{source}/{rung}", constants, arguments, threads)
    return build.selection(rung, source)


LADDER = {
    ("Softmax", "naive"): _naive,
    ("Softmax", "warp"): _warp,
    ("SoftmaxGrad", "naive"): _naive,
    ("SoftmaxGrad", "warp"): _warp,
}
