"""What every graph-to-graph pass needs: renaming, dead code, order, and a rewriter."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from convloom.ir import Graph, Node, TensorSpec
from convloom.ir.graph import free_name


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with tensors renamed; names not in ``names`` stay."""

    def new(name: str) -> str:
        return names.get(name, name)

    return Graph(
        nodes=tuple(
            replace(
                node,
                inputs=tuple(map(new, node.inputs)),
                outputs=tuple(map(new, node.outputs)),
            )
            for node in graph.nodes
        ),
        specs={new(name): spec for name, spec in graph.specs.items()},
        roles={new(name): role for name, role in graph.roles.items()},
        outputs=tuple(map(new, graph.outputs)),
        updates={new(state): new(value) for state, value in graph.updates.items()},
        gradients={new(name): new(grad) for name, grad in graph.gradients.items()},
    )


def without_dead_code(graph: Graph) -> Graph:
    """Drop nodes whose outputs nobody needs, and the specs of tensors that are gone."""
    needed = set(graph.kept())
    live: list[Node] = []
    for node in reversed(graph.nodes):
        if any(out in needed for out in node.outputs):
            live.append(node)
            needed.update(node.inputs)
    nodes = tuple(reversed(live))
    present = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    present.update(graph.roles, graph.kept())
    return graph.replacing(
        nodes=nodes, specs={name: spec for name, spec in graph.specs.items() if name in present}
    )


def ordered(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in an order they can run in, as near as possible to the given one.

    Raises ValueError when they depend on each other in a circle (a faulty rewrite).
    """
    producer = {out: i for i, node in enumerate(nodes) for out in node.outputs}
    waiting = [len({producer[t] for t in node.inputs if t in producer}) for node in nodes]
    readers: dict[int, list[int]] = {i: [] for i in range(len(nodes))}
    for i, node in enumerate(nodes):
        for source in {producer[t] for t in node.inputs if t in producer}:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) != len(nodes):
        stuck = [nodes[i].title for i in range(len(nodes)) if waiting[i] > 0]
        raise ValueError(f"these nodes depend on each other in a circle: {', '.join(stuck)}")
    return tuple(nodes[i] for i in order)


class Rewriter:
    """A graph under rewriting: who makes and who reads each tensor, kept current.

    A rule asks for nodes, then calls ``replace`` with the nodes that go and those that come.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kept = graph.kept()
        self.specs = dict(graph.specs)
        self._nodes: dict[int, Node] = dict(enumerate(graph.nodes))
        self._place: dict[int, float] = {i: float(i) for i in self._nodes}
        self._producer: dict[str, int] = {}
        self._readers: dict[str, dict[int, None]] = {}
        self._next = len(self._nodes)
        for key, node in self._nodes.items():
            self._link(key, node)

    def nodes(self) -> list[Node]:
        """The nodes as they are now; stays valid while rules replace some."""
        keys = sorted(self._nodes, key=self._place.__getitem__)
        return [self._nodes[key] for key in keys]

    def present(self, node: Node) -> bool:
        """Whether ``node`` has not been replaced."""
        key = self._producer.get(node.outputs[0])
        return key is not None and self._nodes[key] is node

    def producer(self, tensor: str) -> Node | None:
        """The node that makes a tensor; None for inputs, parameters and the like."""
        key = self._producer.get(tensor)
        return None if key is None else self._nodes[key]

    def readers(self, tensor: str) -> list[Node]:
        """The nodes that read a tensor."""
        return [self._nodes[key] for key in self._readers.get(tensor, ())]

    def sole_reader(self, tensor: str) -> Node | None:
        """The one node that reads a tensor nobody else needs; None if there are more or none."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and tensor not in self.kept else None

    def fresh(self, wished: str, spec: TensorSpec) -> str:
        """A new tensor's name."""
        name = free_name(wished, self.specs)
        self.specs[name] = spec
        return name

    def replace(self, gone: Iterable[Node], come: Iterable[Node]) -> None:
        """Exchange nodes; the new ones stand where the first of the old ones stood."""
        keys = [self._producer[node.outputs[0]] for node in gone]
        place = min(self._place[key] for key in keys)
        for key in keys:
            self._unlink(key)
        for offset, node in enumerate(come):
            key, self._next = self._next, self._next + 1
            self._nodes[key] = node
            self._place[key] = place + offset * 1e-3
            self._link(key, node)

    def result(self) -> Graph:
        """The rewritten graph, in a valid order and without dead code."""
        graph = self.graph.replacing(nodes=ordered(self.nodes()), specs=self.specs)
        return without_dead_code(graph)

    def _link(self, key: int, node: Node) -> None:
        for tensor in node.outputs:
            self._producer[tensor] = key
        for tensor in node.inputs:
            self._readers.setdefault(tensor, {})[key] = None

    def _unlink(self, key: int) -> None:
        node = self._nodes.pop(key)
        for tensor in node.outputs:
            del self._producer[tensor]
        for tensor in node.inputs:
            self._readers[tensor].pop(key, None)
