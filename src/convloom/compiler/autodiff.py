"""Reverse-mode differentiation of a graph: gradients are ops like any other.

Nodes are walked from last to first; each op's own rule adds its backward ops. Where a tensor is
read several times its gradients are added in the order they arise, so the sum is the same on
every run. Source: Griewank and Walther, "Evaluating Derivatives", 2nd edition, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from convloom.compiler.rewrite import renamed
from convloom.ir import Graph, GraphBuilder, Node
from convloom.ops import Add
from convloom.ops.base import GradientScope, Op


def differentiate(graph: Graph, of: str, seed: str, with_respect_to: Iterable[str]) -> Graph:
    """The graph plus the ops that make gradients.

    Args:
        of: the tensor to differentiate, usually the loss.
        seed: a declared tensor of the shape of ``of`` that holds its incoming gradient.
        with_respect_to: parameters and inputs whose gradients are wanted.

    Returns:
        A graph whose ``gradients`` maps each wanted tensor that ``of`` depends on to its gradient,
        named ``<tensor>.grad``; gradients of activations are named in the same way.

    Raises:
        TypeError: an op without a gradient rule lies between ``of`` and a wanted tensor.
    """
    wanted = list(with_respect_to)
    active = _dependents(graph, wanted)
    builder = GraphBuilder(graph)
    arriving: dict[str, list[str]] = {of: [seed]}
    totals: dict[str, str] = {}
    for node in reversed(graph.nodes):
        if not any(out in arriving and out in active for out in node.outputs):
            continue
        grads = tuple(_total(builder, arriving, totals, out, node) for out in node.outputs)
        for tensor, grad in _input_gradients(builder, node, grads, active):
            arriving.setdefault(tensor, []).append(grad)
    for tensor in wanted:
        _total(builder, arriving, totals, tensor, None)
    builder.gradients.update({name: totals[name] for name in wanted if name in totals})
    given = {seed}
    names = {grad: f"{tensor}.grad" for tensor, grad in totals.items() if grad not in given}
    return renamed(builder.build(), _unambiguous(names, builder))


def _dependents(graph: Graph, sources: Iterable[str]) -> frozenset[str]:
    """Tensors whose value depends on one of ``sources`` through differentiable ops."""
    reached = set(sources)
    for node in graph.nodes:
        if _op(node).differentiable and any(name in reached for name in node.inputs):
            reached.update(node.outputs)
    return frozenset(reached)


def _input_gradients(
    builder: GraphBuilder, node: Node, grads: tuple[str | None, ...], active: frozenset[str]
) -> list[tuple[str, str]]:
    wanted = tuple(name in active for name in node.inputs)
    rule = _op(node).gradient(GradientScope(builder, node, grads, wanted))
    return [
        (name, grad)
        for name, grad, needed in zip(node.inputs, rule, wanted, strict=True)
        if needed and grad is not None
    ]


def _total(
    builder: GraphBuilder,
    arriving: Mapping[str, list[str]],
    totals: dict[str, str],
    tensor: str,
    node: Node | None,
) -> str | None:
    """The sum of the gradients that reach ``tensor``, or None if none does."""
    parts = arriving.get(tensor)
    if not parts:
        return None
    if tensor not in totals:
        layer = node.layer if node else tensor.rpartition(".")[0]
        total = parts[0]
        for part in parts[1:]:
            (total,) = builder.add(Add(), (total, part), layer=layer, names=[f"{tensor}.gradsum"])
        totals[tensor] = total
    return totals[tensor]


def _unambiguous(names: Mapping[str, str], builder: GraphBuilder) -> dict[str, str]:
    """Drop wished names that two tensors would share (Add passes one gradient to both inputs)."""
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for old, new in names.items():
        if new not in taken and not builder.has(new):
            chosen[old] = new
            taken.add(new)
    return chosen


def _op(node: Node) -> Op:
    assert isinstance(node.op, Op)
    return node.op
