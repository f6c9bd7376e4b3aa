"""Steps that make their own batch: plans of one step whose kernels gather and record themselves.

A small network's whole training step takes as long as a few launches. Where one step runs all of a
plan, its kernels can take pixels and labels from the data set in device memory, their rates from a
table, and file the loss, and two launches are saved. Such phases are ``CudaLaunch.fed``; where the
batch lies and where results go are arguments ``Fed(name)``, known only to whoever feeds:

    images, labels, scale, shift, draws    the data set (device/batch.cuh)
    order                                  (steps, n) int64, the samples of each step
    rates                                  (steps, hyper) float64; 0 for a plan that updates nothing
    clock                                  uint64: [0] row, [1] number of the first step, [2] row,
                                           [3] 1 for a network of many that has left off
    losses, corrects                       (steps,) float32, (steps, 2) int32
    place                                  0, or how many steps of the same graph come before

Row is the step's own in order, rates, losses and corrects. The first kernel reads clock[0] and
copies it to clock[2]; the last one reads clock[2] and sets clock[0] to the next row: so no block
reads what another of the same launch writes. Kernels that are chained (kernels/cuda/device/
chained.cuh) begin before clock[0] is set. So they are told their place, and a step that is not
the first of its graph adds that to the row that the first one copied to clock[2].

Hyper values and counter are left as after a gathered step. The kernels' constants gain ``FED``, and
of the data set ``FED_C``, ``FED_H`` … as kernels/cuda/gather has them without the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from convloom.backends.cuda.gpu import Call
from convloom.backends.cuda.launch import (
    Argument,
    CudaLaunch,
    Fed,
    Phase,
    Specialisation,
    Tensor,
    Workspace,
)
from convloom.ir import Plan


class Placed(Protocol):
    """What is needed of an executable: where its memory lies."""

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        ...

    def place(self, buffer: str) -> int:
        """The address of a tensor or workspace of the plan."""
        ...


def fed_calls(
    executable: Placed, gather: Specialisation, addresses: Mapping[str, int]
) -> list[Call]:
    """The launches of a step that feeds itself; none where the plan's kernels cannot.

    Args:
        gather: the kernel that would make the batch; its constants say what the data set is.
        addresses: of what ``Fed`` may name.
    """
    phases = fed_phases(executable.plan, gather)
    return [fed_call(executable, phase, addresses) for phase in phases]


def fed_call(placed: Placed, phase: Phase, given: Mapping[str, int]) -> Call:
    """A launch of the one step of a plan; ``given``: what ``Fed`` may name."""
    (step,) = placed.plan.steps

    def word(argument: Argument | Fed) -> int | float:
        if isinstance(argument, Fed):
            return given[argument.name]
        if isinstance(argument, Tensor):
            return placed.place(argument.name) + argument.offset
        if isinstance(argument, Workspace):
            assert step.workspace is not None
            return placed.place(step.workspace) + argument.offset
        return argument

    return Call(
        phase.kernel,
        tuple(word(argument) for argument in phase.arguments),
        phase.blocks,
        phase.threads,
        phase.shared,
        f"{step.node.title} on a data set",
    )


def only_launch(plan: Plan) -> CudaLaunch | None:
    """What runs the one step of a plan; None for a plan that has more."""
    launch = plan.steps[0].selection.launch if len(plan.steps) == 1 else None
    return launch if isinstance(launch, CudaLaunch) else None


def fed_phases(plan: Plan, gather: Specialisation) -> tuple[Phase, ...]:
    """The phases of a step that feeds itself, for the data set that ``gather`` is for."""
    launch = only_launch(plan)
    return () if launch is None else told(launch.fed, gather)


def told(phases: Sequence[Phase], gather: Specialisation) -> tuple[Phase, ...]:
    """Phases whose kernels know the data set that ``gather`` is for, where they read it."""
    extra = {"FED": 1, **{f"FED_{name}": value for name, value in gather.constants}}

    def one(phase: Phase) -> Phase:
        if not any(isinstance(argument, Fed) for argument in phase.arguments):
            return phase
        constants = {**dict(phase.kernel.constants), **extra}
        kernel = replace(phase.kernel, constants=tuple(sorted(constants.items())))
        return replace(phase, kernel=kernel)

    return tuple(map(one, phases))
