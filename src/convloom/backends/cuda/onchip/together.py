"""Many networks of one kind in each launch: what becomes of the launches of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from convloom.backends.cuda.launch import Argument, Constant, Fed, Phase, Specialisation, Together
from convloom.backends.cuda.onchip.plan import MOST_BLOCKS, OnChip
from convloom.backends.selecting import ceil_div

#: What it costs a block to begin (weights, zeros), in the time of an image.
_BEGIN = 0.25


def together(kernel: OnChip, phases: Iterable[Phase]) -> Together:
    """The phases of one network that feeds itself, packing among them or not, for many."""
    made = {phase.kernel.name: phase for phase in phases}
    pack, step, reduce = (made.get(f"onchip_{name}") for name in ("pack", "step", "reduce"))
    assert step is not None
    assert reduce is not None
    return Together(
        prologue=() if pack is None else (_many(pack, {}, (pack.blocks, Fed("stride"))),),
        phases=(
            _many(step, _scratch(kernel), (step.blocks, Fed("parts"), Fed("stride"))),
            _many(reduce, {}, (reduce.blocks, Fed("members"), Fed("stride"))),
        ),
    )


def _many(
    phase: Phase, constants: Mapping[str, Constant], more: tuple[Argument | Fed, ...]
) -> Phase:
    folder, _, name = phase.kernel.source.rpartition("/")
    known = {**dict(phase.kernel.constants), **constants}
    if "CHAINED" in known:
        known["CHAINED"] = 0  # members that have left off end at once, without waiting
    if "BULK" in known:
        known["BULK"] = 0  # weights come again for each member's sums
    kernel = Specialisation(f"{folder}/many_{name}", tuple(sorted(known.items())))
    return replace(phase, kernel=kernel, arguments=(*phase.arguments, *more))


def _scratch(kernel: OnChip) -> dict[str, Constant]:
    """Where sums are added up: on matrices, which are copied anew while convolutions run, if there
    is room."""
    known = kernel.constants(True)
    start, end, nbytes = known["MATRICES_AT"], known["SUMS_AT"], kernel.scratch
    assert isinstance(start, int)
    assert isinstance(end, int)
    return {"SCRATCH_AT": start if start + nbytes <= end else 0, "SCRATCH_BYTES": nbytes}


def parts_of(blocks: int, members: int) -> int:
    """Into how many blocks a member's ``blocks`` are put together: what takes least time.

    The device runs MOST_BLOCKS at a time, each as long as its images and a beginning take.
    """

    def rounds(parts: int) -> float:
        return ceil_div(members * parts, MOST_BLOCKS) * (ceil_div(blocks, parts) + _BEGIN)

    return min(range(1, blocks + 1), key=lambda parts: (rounds(parts), parts))
