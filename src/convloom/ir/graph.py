"""A graph: what to compute, in order, gradients and updates included. Shapes are exact."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np

from convloom.ir.errors import ShapeError
from convloom.ir.spec import TensorSpec


class Operation(Protocol):
    """What the graph needs to know of an op; ``convloom.ops.Op`` is the base class of all."""

    @property
    def name(self) -> str: ...

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]: ...

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]: ...


class Role(Enum):
    """Where a tensor's value comes from, and how long it must live."""

    INPUT = "input"  # written by the host before each run: images, labels
    PARAMETER = "parameter"  # learnt; lives between runs
    STATE = "state"  # lives between runs but is not learnt by gradient: momentum, running mean
    CONTROL = "control"  # small values the host changes between runs: rates, seed, step counter
    TRANSIENT = "transient"  # made and used within one run


@dataclass(frozen=True)
class Node:
    """One application of an op. ``layer`` names the module that asked for it (``features.2``)."""

    op: Operation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layer: str

    @property
    def title(self) -> str:
        """``features.2 (Conv2d)``, as messages and tables show it."""
        return f"{self.layer} ({self.op.name})" if self.layer else self.op.name


@dataclass(frozen=True)
class Graph:
    """Nodes in an order they can run in; each tensor has one producer or is given from outside.

    Attributes:
        nodes: the computation, in order.
        specs: shape, dtype and layout of every tensor.
        roles: the role of every tensor that is not TRANSIENT.
        outputs: tensors a caller reads after a run; they are never optimised away.
        updates: {state or parameter: the tensor that holds its value after the run}.
        gradients: {parameter or input: its gradient}, filled by autodiff.
    """

    nodes: tuple[Node, ...]
    specs: Mapping[str, TensorSpec]
    roles: Mapping[str, Role]
    outputs: tuple[str, ...] = ()
    updates: Mapping[str, str] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)

    def named(self, role: Role) -> tuple[str, ...]:
        """Tensors of this role, in the order they were declared."""
        return tuple(name for name, its_role in self.roles.items() if its_role is role)

    def role(self, tensor: str) -> Role:
        """The role of a tensor; TRANSIENT unless it was declared otherwise."""
        return self.roles.get(tensor, Role.TRANSIENT)

    def producers(self) -> dict[str, int]:
        """{tensor: index of the node that makes it}."""
        return {out: i for i, node in enumerate(self.nodes) for out in node.outputs}

    def consumers(self) -> dict[str, list[int]]:
        """{tensor: indices of the nodes that read it}."""
        readers: dict[str, list[int]] = {name: [] for name in self.specs}
        for i, node in enumerate(self.nodes):
            for tensor in dict.fromkeys(node.inputs):
                readers[tensor].append(i)
        return readers

    def kept(self) -> frozenset[str]:
        """Tensors that must exist after the run: outputs, gradients, new values of states."""
        return frozenset((*self.outputs, *self.updates.values(), *self.gradients.values()))

    def replacing(self, **changes: Any) -> Graph:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def __str__(self) -> str:
        lines = [f"{role.value} {name}: {self.specs[name]}" for name, role in self.roles.items()]
        for node in self.nodes:
            made = ", ".join(f"{out}: {self.specs[out]}" for out in node.outputs)
            lines.append(f"{made} = {node.op}({', '.join(node.inputs)})  # {node.layer}")
        lines.append(f"outputs {', '.join(self.outputs)}")
        return "\n".join(lines)


class GraphBuilder:
    """Grows a graph node by node; every added op is shape-checked at once.

    Errors raised by an op's shape rule gain the name of the layer that asked for it.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        self._nodes: list[Node] = list(graph.nodes) if graph else []
        self._specs: dict[str, TensorSpec] = dict(graph.specs) if graph else {}
        self._roles: dict[str, Role] = dict(graph.roles) if graph else {}
        self.outputs: list[str] = list(graph.outputs) if graph else []
        self.updates: dict[str, str] = dict(graph.updates) if graph else {}
        self.gradients: dict[str, str] = dict(graph.gradients) if graph else {}

    def declare(self, name: str, spec: TensorSpec, role: Role) -> str:
        """Introduce a tensor that comes from outside the computation."""
        if name in self._specs:
            raise ValueError(f"tensor {name!r} is declared twice")
        self._specs[name] = spec
        self._roles[name] = role
        return name

    def add(
        self,
        op: Operation,
        inputs: Sequence[str],
        *,
        layer: str = "",
        names: Iterable[str] | None = None,
    ) -> tuple[str, ...]:
        """Apply ``op``; returns the names of its outputs.

        Args:
            names: wished output names; one that is taken gets a number. Default: the layer's name.

        Raises:
            ShapeError: the op refuses the shapes; the message names the layer.
        """
        try:
            specs = op.infer(*(self.spec(name) for name in inputs))
        except ShapeError as error:
            raise error.within(layer) from None
        wished = list(names) if names is not None else self._default_names(op, layer, len(specs))
        if len(wished) != len(specs):
            raise ValueError(f"{op.name} makes {len(specs)} tensors, {len(wished)} names given")
        made = tuple(self._claim(name, spec) for name, spec in zip(wished, specs, strict=True))
        self._nodes.append(Node(op, tuple(inputs), made, layer))
        return made

    def spec(self, name: str) -> TensorSpec:
        """The spec of a tensor of this graph."""
        return self._specs[name]

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        return name in self._specs

    def build(self) -> Graph:
        """The finished graph."""
        return Graph(
            nodes=tuple(self._nodes),
            specs=dict(self._specs),
            roles=dict(self._roles),
            outputs=tuple(self.outputs),
            updates=dict(self.updates),
            gradients=dict(self.gradients),
        )

    def _default_names(self, op: Operation, layer: str, count: int) -> list[str]:
        stem = f"{layer}.out" if layer else op.name.lower()
        return [stem] if count == 1 else [f"{stem}{i}" for i in range(count)]

    def _claim(self, wished: str, spec: TensorSpec) -> str:
        name = free_name(wished, self._specs)
        self._specs[name] = spec
        return name


def free_name(wished: str, taken: Container[str]) -> str:
    """``wished``, with a number behind it if it is taken."""
    name, number = wished, 1
    while name in taken:
        number += 1
        name = f"{wished}#{number}"
    return name
