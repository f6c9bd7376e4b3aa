"""Taps: tensors that a person wants to read after a run, though fusion never stores them.

The plan's own nodes stay as they are, so a watched run has the bits of one that is not. What
fusion took apart is made again beside them, by the nodes that the network was traced to, from what
is stored: the map between a convolution and its pool from the convolution's input, say. Kernels of
a rung add up in one order, fused or not, so a tap shows what the fused kernel had in its registers;
tests/compiler/test_watch.py holds the rungs of each backend to the bit. A segment that runs on chip
as a whole is shown by the kernels of its layers, in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from convloom.ir import ConvloomError, Graph, Node, TensorSpec
from convloom.ir.graph import free_name
from convloom.ops import Conv2dDgrad, Op, PooledConv2dGrad


def with_taps(fused: Graph, traced: Graph, watch: Sequence[str]) -> Graph:
    """``fused`` with memory of their own for the tensors ``watch``, and with what makes them.

    Args:
        traced: the graph before fusion, layouts chosen.

    Raises:
        ConvloomError: a name that is no tensor of the graph.
    """
    for name in watch:
        if name not in traced.specs and name not in fused.specs:
            known = ", ".join(name for name in traced.specs if name not in traced.roles)
            raise ConvloomError(f"there is no tensor {name!r} to watch; there are {known}")
    specs, nodes = dict(fused.specs), list(fused.nodes)
    unmasked = dict(_unmasked(fused, traced))
    for node in _missing(traced, unmasked, specs, watch):
        tap = _tap(node, traced, specs)
        nodes.insert(_earliest(nodes, tap), tap)
    kept = [name for name in dict.fromkeys(watch) if name not in fused.outputs]
    outputs = (*fused.outputs, *kept)
    return fused.replacing(nodes=tuple(nodes), specs=specs, outputs=outputs)


def _unmasked(fused: Graph, traced: Graph) -> Iterator[tuple[str, Node]]:
    """(input gradient, what makes it) where a pooled convolution's gradients pass a mask at once.

    Here alone the traced nodes are no match: they would multiply the zeros too, in another order.
    """
    makers = traced.producers()
    dgrads = {n.inputs: n.outputs[0] for n in traced.nodes if isinstance(n.op, Conv2dDgrad)}
    for node in fused.nodes:
        if isinstance(node.op, PooledConv2dGrad) and node.op.mask != "none":
            dy = traced.nodes[makers[node.outputs[0]]].inputs[1]  # as the filter gradient reads it
            name = dgrads[dy, node.inputs[1]]
            op = replace(node.op, mask="none")
            yield name, replace(node, op=op, outputs=(*node.outputs[:-1], name))


def _missing(
    traced: Graph,
    instead: Mapping[str, Node],
    specs: Mapping[str, TensorSpec],
    watch: Iterable[str],
) -> Iterator[Node]:
    """The nodes that make what ``watch`` needs and ``specs`` does not have, in order.

    Args:
        instead: nodes that make a tensor in place of the traced ones.
    """
    makers, wanted, todo = traced.producers(), dict[int, Node](), list(watch)
    while todo:
        name = todo.pop()
        if name not in specs and makers[name] not in wanted:
            node = instead.get(name, traced.nodes[makers[name]])
            wanted[makers[name]] = node
            todo.extend(node.inputs)
    for index in sorted(wanted):
        yield wanted[index]


def _tap(node: Node, traced: Graph, specs: dict[str, TensorSpec]) -> Node:
    """The node, with other names for outputs that the plan makes itself; declares its outputs.

    It updates nothing: the plan's own node has done so.
    """
    assert isinstance(node.op, Op)
    op = node.op.without_updates()
    outputs = []
    for name in node.outputs[: op.arity_out]:
        free = free_name(f"{name}.again", specs) if name in specs else name
        specs[free] = traced.specs[name] if name in traced.specs else specs[name]
        outputs.append(free)
    return replace(node, op=op, inputs=node.inputs[: op.arity_in], outputs=tuple(outputs))


def _earliest(nodes: Sequence[Node], tap: Node) -> int:
    """Where a node can first run. Before any update, which replaces what it reads."""
    needs = set(tap.inputs)
    made = [at for at, node in enumerate(nodes) if needs.intersection(node.outputs)]
    return made[-1] + 1 if made else 0
