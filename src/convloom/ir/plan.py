"""A plan: which kernel runs each step, and where every tensor lies. Plain data, made by compiler/.

``print(plan)`` is a table a person can read; ``plan.to_json()`` is the same for a script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from convloom.ir.graph import Graph, Node
from convloom.ir.spec import TensorSpec


@dataclass(frozen=True)
class Region:
    """A part of a block's on-chip memory: what lies there, and its bytes."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Segment:
    """How a whole chain of layers runs on chip, as ``print(plan)`` shows it.

    Attributes:
        stages: the layers in order, as a reader knows them (``Conv2d 16×26×26``).
        images: that a block holds at a time.
        blocks: that run in all, and ``threads`` of each.
        regions: on-chip memory for each image.
        fixed: on-chip memory for each block: weights, sums.
        limit: bytes that a block may have.
        cluster: blocks that share an image.
        precision: what operands of products are rounded to.
        together: whether the same launches can make a step of many networks of this kind.
    """

    stages: tuple[str, ...]
    images: int
    blocks: int
    threads: int
    regions: tuple[Region, ...]
    fixed: tuple[Region, ...] = ()
    limit: int = 0
    cluster: int = 1
    precision: str = "fp32"
    together: bool = False

    @property
    def nbytes(self) -> int:
        """On-chip memory that a block takes."""
        own = sum(region.nbytes for region in self.regions)
        return self.images * own + sum(region.nbytes for region in self.fixed)


@dataclass(frozen=True)
class Selection:
    """A backend's answer to "what runs this node?".

    Attributes:
        rung: the ladder rung that was taken (``reference``, ``dense``, ``sparse``, …).
        kernel: name of the kernel source file, without folder and suffix.
        launch: what the backend needs to run it; opaque to everyone else.
        workspace: bytes of scratch memory that must live during this step only.
        note: why a lower rung than asked was taken; empty otherwise.
        lasting: whether the workspace must keep its content from one run to the next.
        segment: how a chain of layers lies on chip; None for all other ops.
    """

    rung: str
    kernel: str
    launch: Any
    workspace: int = 0
    note: str = ""
    lasting: bool = False
    segment: Segment | None = None


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
        precision: what operands of products are rounded to on chip; elsewhere they are fp32.
        notes: what runs other than asked, and why.
    """

    graph: Graph
    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer]
    arenas: Mapping[str, int]
    transient_bound: int
    backend: str
    kernels: str = "auto"
    precision: str = "fp32"
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
                **_segment_row(step.selection.segment),
            }
            for index, step in enumerate(self.steps)
        ]

    def to_json(self) -> dict[str, Any]:
        """The plan's table and memory figures as plain data."""
        return {
            "backend": self.backend,
            "kernels": self.kernels,
            "precision": self.precision,
            "steps": self.rows(),
            "arenas": dict(self.arenas),
            "transient_bound": self.transient_bound,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        from convloom.ir.printing import plan_table

        return plan_table(self)


def _segment_row(segment: Segment | None) -> dict[str, Any]:
    """What a step's row tells of its segment; nothing where it has none."""
    return {} if segment is None else {"segment": asdict(segment) | {"nbytes": segment.nbytes}}
