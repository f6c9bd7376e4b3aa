"""Kernels of sums along the paths of a class tree."""

from __future__ import annotations

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, ceil_div
from convloom.backends.selecting import rows_of_trees
from convloom.ir import Node, Selection

#: Nodes and leaves an item takes, about.
_ITEM = 8192


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 rows."""
    if not rows_of_trees(node, specs):
        return None
    x, made = specs[node.inputs[0]], specs[node.outputs[0]]
    upwards = node.op.name == "PathSum"
    samples, leaves = x.shape[0], (made if upwards else x).shape[1]
    nodes = (x if upwards else made).shape[1]
    rows = max(1, _ITEM // (nodes + leaves))
    read = node.inputs[:2] if upwards else node.inputs
    arguments: tuple[Argument, ...] = (
        *(Tensor(name) for name in (*read, node.outputs[0])),
        *(samples, nodes, leaves, rows),
    )
    kernel = "path_sum" if upwards else "leaf_sum"
    build = Builder(specs)
    build.add(kernel, {}, arguments, ceil_div(samples, rows), 0 if upwards else 4 * leaves)
    return build.selection(kernel)
