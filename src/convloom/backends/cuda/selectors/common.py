"""What selectors share: memory orders, launch sizes, and copies into the order wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from convloom.backends.cuda.launch import (
    Argument,
    Constant,
    CudaLaunch,
    Phase,
    Specialisation,
    Tensor,
)
from convloom.backends.selecting import (
    Specs,
    WorkspaceBuilder,
    ceil_div,
    dtypes,
    same_order,
)
from convloom.ir import NHWC, Layout, Node, Selection, TensorSpec

__all__ = [
    "ABSENT",
    "THREADS",
    "Builder",
    "Pair",
    "Specs",
    "View",
    "ceil_div",
    "channels_last",
    "dtypes",
    "image_order",
    "pairs",
    "row_major",
    "same_order",
    "tensors",
]

Pair = tuple[int, int]

#: Threads of a block where the kernel does not care.
THREADS = 256
#: The address of a tensor that is not there.
ABSENT = 0


def tensors(node: Node) -> tuple[Tensor, ...]:
    """The inputs, then the outputs, as arguments."""
    return tuple(Tensor(name) for name in (*node.inputs, *node.outputs))


def channels_last(spec: TensorSpec) -> bool:
    """Whether axis 1 of a rank-4 tensor is innermost in memory (NHWC, and KRSC for filters)."""
    return len(spec.shape) == 4 and same_order(spec.layout, NHWC)


def row_major(spec: TensorSpec) -> bool:
    """Whether memory is in the order of the logical axes."""
    return spec.layout.order is None


def image_order(spec: TensorSpec) -> bool:
    """Whether a tensor is row-major, or of rank 4 with channels last: what image kernels know."""
    return row_major(spec) or channels_last(spec)


def pairs(**values: Pair) -> dict[str, int]:
    """``K=(3, 5)`` as ``{"KH": 3, "KW": 5}``."""
    return {
        f"{name}{axis}": pair[i] for name, pair in values.items() for i, axis in enumerate("HW")
    }


@dataclass(frozen=True)
class View:
    """Where a (sample, channel, row, column) lies in a tensor, in elements.

    ``sample`` is the distance of samples; ``channel``, ``row`` and ``col`` those along the axes.
    """

    sample: int
    channel: int
    row: int
    col: int

    @classmethod
    def of(cls, shape: tuple[int, int, int], last: bool) -> View:
        """The view of dense images (channels, rows, cols), channels last or row-major."""
        channels, rows, cols = shape
        whole = channels * rows * cols
        if last:
            return cls(whole, 1, cols * channels, channels)
        return cls(whole, rows * cols, cols, 1)


@dataclass
class Builder(WorkspaceBuilder):
    """Collects the phases and the workspace of a step, and phases for batches of other sizes."""

    alignment = 128
    phases: list[Phase] = field(default_factory=list)
    others: list[Phase] = field(default_factory=list)

    def add(
        self,
        source: str,
        constants: Mapping[str, Constant],
        arguments: tuple[Argument, ...],
        blocks: int,
        threads: int = THREADS,
        shared: int = 0,
    ) -> None:
        """Append a launch, unless it has nothing to do."""
        if blocks:
            # Sorted, so that equal specialisations compile once.
            kernel = Specialisation(source, tuple(sorted(constants.items())))
            self.phases.append(Phase(kernel, arguments, blocks, threads, shared))

    def each(
        self,
        source: str,
        constants: Mapping[str, Constant],
        arguments: tuple[Argument, ...],
        items: int,
        threads: int = THREADS,
    ) -> None:
        """Append a launch of one thread an item."""
        self.add(source, constants, arguments, ceil_div(items, threads), threads)

    def input(self, name: str, wanted: Layout) -> Argument | None:
        """Where ``name`` lies in the order ``wanted``, copied there if need be.

        Row-major images become NHWC, and NHWC ones row-major. None for any other pair.
        """
        spec = self.specs[name]
        if same_order(spec.layout, wanted):
            return Tensor(name)
        goal = spec.with_layout(wanted)
        if len(spec.shape) != 4 or spec.dtype not in ("float32", "int32"):
            return None
        if not (image_order(spec) and image_order(goal)):
            return None
        target = self.workspace(spec.nbytes)
        shape = (spec.shape[1], spec.shape[2], spec.shape[3])
        last = channels_last(goal)
        views = View.of(shape, channels_last(spec)), View.of(shape, last)
        self.copy(Tensor(name), target, spec.shape[0], shape, views, last)
        return target

    def copy(
        self,
        source: Argument,
        target: Argument,
        samples: int,
        shape: tuple[int, int, int],
        views: tuple[View, View],
        last: bool,
        rung: str = "naive",
    ) -> None:
        """Append a copy of 4-byte elements.

        Args:
            shape: channels, rows and columns of what is copied.
            views: where its elements lie in the source and in the target.
            last: whether channels are innermost in the target.
            rung: ``tiled`` where they are in both, and all go in fours.
        """
        axes = ("row", "col", "channel") if last else ("channel", "row", "col")
        extents = dict(zip(("channel", "row", "col"), shape, strict=True))
        constants = {letter: extents[axis] for letter, axis in zip("ABC", axes, strict=True)}
        for prefix, view in zip(("FROM", "TO"), views, strict=True):
            constants[f"{prefix}_N"] = view.sample
            for letter, axis in zip("ABC", axes, strict=True):
                constants[f"{prefix}_{letter}"] = getattr(view, axis)
        size = samples * shape[0] * shape[1] * shape[2]
        if rung == "naive":
            self.each("copy_strided/naive", constants, (source, target, size), size)
        else:
            blocks = samples * ceil_div(shape[0] * shape[1] * shape[2] // 4, THREADS)
            self.add(f"copy_strided/{rung}", constants, (source, target), blocks)

    def selection(self, rung: str, kernel: str, note: str = "") -> Selection:
        """The finished selection; ``kernel`` is the folder of its main kernel."""
        launch = CudaLaunch(tuple(self.phases), others=tuple(self.others))
        return Selection(rung, kernel, launch, self.nbytes, note)

    def choose(self, last: bool, launches: int = 1) -> None:
        """Of what was appended last, keep the last ``launches``, or the one before them.

        The others are for batches of other sizes.
        """
        first, end = (-launches - 1, -launches) if last else (-launches, len(self.phases))
        self.others += self.phases[first:end]
        del self.phases[first:end]
