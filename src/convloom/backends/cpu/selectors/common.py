"""What selectors share: memory orders, and phases that bring an input into the order wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from convloom.backends.cpu.launch import (
    Argument,
    CpuLaunch,
    Phase,
    Specialisation,
    Tensor,
    Workspace,
)
from convloom.backends.selecting import (
    Specs,
    WorkspaceBuilder,
    ceil_div,
    dtypes,
    same_order,
)
from convloom.ir import NHWC, Layout, Selection

__all__ = ["CHUNK", "Builder", "Specs", "ceil_div", "dtypes", "same_order"]

#: Elements an item of an element-wise kernel takes.
CHUNK = 16384
_TRANSPOSE_ROWS = 64


@dataclass
class Builder(WorkspaceBuilder):
    """Collects the phases and the workspace of a step."""

    alignment = 64
    phases: list[Phase] = field(default_factory=list)

    def add(
        self,
        source: str,
        constants: Mapping[str, int],
        arguments: tuple[Argument, ...],
        items: int,
        scratch: int = 0,
    ) -> None:
        """Append a phase."""
        kernel = Specialisation(source, tuple(constants.items()))
        self.phases.append(Phase(kernel, arguments, items, scratch))

    def input(self, name: str, wanted: Layout) -> Tensor | Workspace | None:
        """Where ``name`` lies in the order ``wanted``, copied there if need be.

        Row-major images become NHWC, and NHWC ones row-major. None for any other pair.
        """
        spec = self.specs[name]
        if same_order(spec.layout, wanted):
            return Tensor(name)
        if len(spec.shape) != 4 or spec.dtype not in ("float32", "int32"):
            return None
        channels, pixels = spec.shape[1], spec.shape[2] * spec.shape[3]
        target = self.workspace(spec.nbytes)
        if spec.layout.order is None and same_order(wanted, NHWC):
            self.transpose(Tensor(name), target, spec.shape[0], channels, pixels)
        elif same_order(spec.layout, NHWC) and wanted.order is None:
            self.transpose(Tensor(name), target, spec.shape[0], pixels, channels)
        else:
            return None
        return target

    def transpose(self, source: Argument, to: Argument, count: int, rows: int, cols: int) -> None:
        """Append the transposition of ``count`` matrices of 4-byte elements."""
        items = count * ceil_div(rows, _TRANSPOSE_ROWS)
        self.add("transpose", {"ROWS": _TRANSPOSE_ROWS}, (source, to, rows, cols), items)

    def selection(self, kernel: str, rung: str = "dense") -> Selection:
        """The finished selection."""
        return Selection(rung, kernel, CpuLaunch(tuple(self.phases)), workspace=self.nbytes)
