"""A plan: which kernel runs each step, and where every tensor lies. Plain data, made by compiler/.

``print(plan)`` is a table a person can read; ``plan.to_json()`` is the same for a script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convloom.ir.graph import Graph, Node
from convloom.ir.spec import TensorSpec


@dataclass(frozen=True)
class Selection:
    """A backend's answer to "what runs this node?".

    Attributes:
        rung: the ladder rung that was taken (``reference``, ``dense``, ``sparse``, …).
        kernel: name of the kernel source file, without folder and suffix.
        launch: what the backend needs to run it; opaque to everyone else.
        workspace: bytes of scratch memory that must live during this step only.
        note: why a lower rung than asked was taken; empty otherwise.
    """

    rung: str
    kernel: str
    launch: Any
    workspace: int = 0
    note: str = ""


@dataclass(frozen=True)
class Step:
    """One entry of a plan: a node and what runs it."""

    node: Node
    selection: Selection
    flops: int
    nbytes: int
    workspace: str | None = None


@dataclass(frozen=True)
class Buffer:
    """Where a tensor lies: an arena, a byte offset, and the steps between which it must live."""

    arena: str
    offset: int
    nbytes: int
    first: int
    last: int


#: The arenas of a plan, in the order they are allocated.
PERSISTENT, GRADIENTS, TRANSIENT = "persistent", "gradients", "transient"


@dataclass(frozen=True)
class Plan:
    """A training step, or a forward pass, ready to run.

    Attributes:
        graph: after all passes; ``graph.specs`` hold the layouts that were chosen.
        steps: in order; views (Flatten of an NHWC tensor) have no step.
        buffers: {tensor: Buffer}; tensors that share memory (views, in-place updates) are equal.
        arenas: {arena: bytes}. PERSISTENT holds parameters, states and controls and is shared by
            all plans of a network; GRADIENTS has the parameters' offsets; TRANSIENT is reused.
        transient_bound: bytes no arena could go below: the most that is live at any one step.
        backend: name of the backend that runs it.
        kernels: the rung asked for (``auto`` or a cap).
    """

    graph: Graph
    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer]
    arenas: Mapping[str, int]
    transient_bound: int
    backend: str
    kernels: str = "auto"
    notes: tuple[str, ...] = field(default=())

    def spec(self, tensor: str) -> TensorSpec:
        """Shape, dtype and layout of a tensor."""
        return self.graph.specs[tensor]

    def rows(self) -> list[dict[str, Any]]:
        """One dict a step: step, layer, op, rung, kernel, shapes, bytes, flops."""
        return [
            {
                "step": index,
                "layer": step.node.layer,
                "op": step.node.op.name,
                "rung": step.selection.rung,
                "kernel": step.selection.kernel,
                "inputs": [str(self.spec(name)) for name in step.node.inputs],
                "outputs": [str(self.spec(name)) for name in step.node.outputs],
                "bytes": step.nbytes,
                "flops": step.flops,
                "note": step.selection.note,
            }
            for index, step in enumerate(self.steps)
        ]

    def to_json(self) -> dict[str, Any]:
        """The plan's table and memory figures as plain data."""
        return {
            "backend": self.backend,
            "kernels": self.kernels,
            "steps": self.rows(),
            "arenas": dict(self.arenas),
            "transient_bound": self.transient_bound,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        from convloom.ir.printing import plan_table

        return plan_table(self)
