"""Kernels of sums along the paths of a class tree."""

from __future__ import annotations

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import Builder, Specs
from convloom.backends.selecting import rows_of_trees
from convloom.ir import Node, Selection


def _path_sum(node: Node, specs: Specs) -> Selection | None:
    nodes, leaves = (specs[name].shape[1] for name in (node.inputs[0], node.outputs[0]))
    return _summed(node, specs, "path_sum", node.inputs[:2], (nodes, leaves))


def _leaf_sum(node: Node, specs: Specs) -> Selection | None:
    leaves, nodes = (specs[name].shape[1] for name in (node.inputs[0], node.outputs[0]))
    return _summed(node, specs, "leaf_sum", node.inputs, (nodes, leaves))


def _summed(
    node: Node, specs: Specs, kernel: str, read: tuple[str, ...], sizes: tuple[int, int]
) -> Selection | None:
    """Serves float32 rows; the kernel reads the first of the node's inputs, or all."""
    if not rows_of_trees(node, specs):
        return None
    build, made = Builder(specs), specs[node.outputs[0]]
    arguments: tuple[Argument, ...] = (
        *(Tensor(name) for name in (*read, node.outputs[0])),
        *(made.size, *sizes),
    )
    build.each(f"{kernel}/naive", {}, arguments, made.size)
    return build.selection("naive", kernel)


LADDER = {("PathSum", "naive"): _path_sum, ("LeafSum", "naive"): _leaf_sum}
