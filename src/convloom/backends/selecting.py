"""What the selectors of every backend share: facts of specs, and a step's workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from convloom.backends.launch import Workspace
from convloom.ir import Layout, Node, TensorSpec
from convloom.ops.activation import KINDS

Specs = Mapping[str, TensorSpec]


def ceil_div(a: int, b: int) -> int:
    """The least integer that is at least a / b."""
    return -(-a // b)


def dtypes(node: Node, specs: Specs) -> tuple[str, ...]:
    """Element types of inputs, then outputs."""
    return tuple(specs[name].dtype for name in (*node.inputs, *node.outputs))


def same_order(a: Layout, b: Layout) -> bool:
    """Whether two layouts are the same order in memory (KRSC is NHWC by another name)."""
    return (a.order, a.view) == (b.order, b.view)


def rows_together(spec: TensorSpec) -> bool:
    """Whether axis 0 is outermost in memory, so that its slices (filters) lie one by one."""
    return spec.layout.order is None or spec.layout.order[0] == 0


def activation_number(kind: str) -> int:
    """What kernels call an activation: 0 is none, 1 the rectifier, then KINDS in their order."""
    return ("none", "relu", *KINDS).index(kind)


@dataclass
class WorkspaceBuilder:
    """Collects the workspace of a step.

    Attributes:
        alignment: of each piece, in bytes.
        nbytes: what all pieces take.
    """

    alignment: ClassVar[int]
    specs: Specs
    nbytes: int = 0

    def workspace(self, nbytes: int) -> Workspace:
        """Reserve bytes of the step's workspace, aligned."""
        place = Workspace(self.nbytes)
        self.nbytes += ceil_div(nbytes, self.alignment) * self.alignment
        return place
