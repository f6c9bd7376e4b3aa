"""Plans as text that a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convloom.ir.plan import Plan, Region, Step

_UNITS = ("", "k", "M", "G", "T")
_HEADER = ("step", "layer", "op", "kernel", "output", "bytes", "FLOPs")


def quantity(value: float) -> str:
    """``1234567`` as ``1.23 M``: three significant digits and a decimal unit."""
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.3g} {unit}".rstrip() if unit else f"{value:.0f}"


def plan_table(plan: Plan) -> str:
    """The plan's steps, one a line, and what its memory takes."""
    rows = [
        (
            str(index),
            step.node.layer,
            step.node.op.name,
            f"{step.selection.kernel} [{step.selection.rung}]",
            ", ".join(str(plan.spec(out)) for out in step.node.outputs[:2])
            + (" …" if len(step.node.outputs) > 2 else ""),
            quantity(step.nbytes),
            quantity(step.flops),
        )
        for index, step in enumerate(plan.steps)
    ]
    widths = [max(len(row[i]) for row in (_HEADER, *rows)) for i in range(len(_HEADER))]
    numeric = {0, 5, 6}

    def line(cells: tuple[str, ...]) -> str:
        padded = (
            cell.rjust(width) if i in numeric else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join(
        [
            line(_HEADER),
            line(tuple("-" * width for width in widths)),
            *(line(row) for row in rows),
            "",
            *(line for step in plan.steps for line in _segment_lines(step)),
            *_together_lines(plan),
            *_memory_lines(plan),
            *(f"note: {note}" for note in plan.notes),
        ]
    )


def _segment_lines(step: Step) -> list[str]:
    """How a chain of layers lies on chip: its stages, its blocks, and their memory."""
    found = step.selection.segment
    if found is None:
        return []
    each = f"{found.images} image{'s' * (found.images != 1)} at a time"
    if found.cluster > 1:
        each += f" for each cluster of {found.cluster}"
    parts = [_regions("each image", found.regions), _regions("the block", found.fixed)]
    return [
        f"segment {step.node.layer}: {', '.join(found.stages)}",
        f"  {found.blocks} blocks of {found.threads} threads, {each}",
        f"  products of {found.precision} operands, sums in fp32",
        f"  on-chip memory of a block: {quantity(found.nbytes)}B of {quantity(found.limit)}B",
        *(f"    {part}" for part in parts if part),
    ]


def _together_lines(plan: Plan) -> list[str]:
    """Whether many networks can take their steps together: where a step is one segment."""
    segment = plan.steps[0].selection.segment if len(plan.steps) == 1 else None
    if segment is None or not segment.together:
        return []
    return ["  members of cl.train_many and convloom sweep: two launches a step for all"]


def _regions(owner: str, regions: tuple[Region, ...]) -> str:
    shown = ", ".join(f"{region.name} {quantity(region.nbytes)}B" for region in regions)
    return f"{owner}: {shown}" if shown else ""


def _memory_lines(plan: Plan) -> list[str]:
    total = sum(plan.arenas.values())
    fixed = total - plan.arenas.get("transient", 0)
    bound = fixed + plan.transient_bound
    parts = ", ".join(f"{name} {quantity(size)}B" for name, size in plan.arenas.items())
    ratio = f"{total / bound:.2f}" if bound else "1.00"
    return [
        f"backend {plan.backend}, kernels {plan.kernels}, precision {plan.precision}",
        f"memory {quantity(total)}B ({parts}); lower bound {quantity(bound)}B, ratio {ratio}",
    ]
