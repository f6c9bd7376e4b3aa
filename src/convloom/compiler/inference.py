"""A trained network as it predicts: ops that only act in training are replaced or passed by."""

from __future__ import annotations

from dataclasses import replace

from convloom.compiler.rewrite import without_dead_code
from convloom.ir import Graph, Node
from convloom.ops.base import Op


def for_inference(graph: Graph) -> Graph:
    """The graph with every op in its inference form (dropout gone), and without updates.

    Output names are kept: an output that a passed-by op made is read from that op's input.
    """
    stands_for: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(stands_for.get(name, name) for name in node.inputs)
        assert isinstance(node.op, Op)
        op = node.op.inference()
        if op is None:
            stands_for[node.outputs[0]] = inputs[0]
            continue
        # Nothing is updated: who would read a new value reads the one before.
        stands_for.update({node.outputs[i]: inputs[j] for i, j in node.op.inplace.items()})
        outputs = node.outputs[: op.arity_out]
        nodes.append(replace(node, op=op, inputs=inputs[: op.arity_in], outputs=outputs))
    outputs = tuple(stands_for.get(name, name) for name in graph.outputs)
    return without_dead_code(graph.replacing(nodes=tuple(nodes), outputs=outputs, updates={}))
