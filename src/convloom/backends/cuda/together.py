"""Many networks of one kind on one data set, the same two launches a step for all of them.

A member's memory is a *slab*: persistent tensors, what its plans need while they run, and tables of
samples and rates. All slabs are one allocation, ``stride`` bytes from each to the next, so kernels
find a member's tensors from those of the first (kernels/cuda/onchip/member.cuh). The data set is
there but once. Which plans can run so is for ``CudaLaunch.together`` to say; a member has the bits
of ``ResidentSteps`` on memory of its own.

    memory = MemberMemory(gpu, jobs, count=256)
    storages = [memory.storage(member, plan) for member in range(256)]
    steps = memory.runner(0)
    steps.begin(orders, rates)
    results = steps.ask(64).results()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convloom.backends.cuda.executable import own_arenas
from convloom.backends.cuda.fed import fed_call, only_launch, told
from convloom.backends.cuda.gpu import Allocation, Gpu
from convloom.backends.cuda.graph import REPETITIONS, Replay
from convloom.backends.cuda.launch import Fed, Phase, Specialisation, Together, launch_of
from convloom.backends.cuda.onchip.together import parts_of
from convloom.backends.cuda.resident import (
    ResidentData,
    checked_draws,
    checked_plan,
    draw_bytes,
    gathers_itself,
    kernels,
)
from convloom.backends.cuda.storage import CudaStorage
from convloom.backends.cuda.tables import Reports, checked_order, checked_rates
from convloom.backends.feeding import Asked, Crops, Job, Samples
from convloom.ir import PERSISTENT, Plan

#: What tables and arenas are aligned to within a slab, and slabs among each other.
_ALIGNMENT = 256
#: Of a member's clock (fed.py): its row, its first step, its row again, whether it has left off.
_CLOCK = 4


def together_of(plan: Plan) -> Together | None:
    """How a plan runs for many networks at once; None where it cannot."""
    launch = only_launch(plan)
    return None if launch is None else launch.together


def many_phases(plan: Plan, gather: Specialisation) -> tuple[Phase, ...]:
    """All phases of a plan for many networks, for the data set that ``gather`` is for."""
    made = together_of(plan)
    return () if made is None else told((*made.prologue, *made.phases), gather)


def refusal(plan: Plan, samples: Samples, crops: Crops | None) -> str:
    """Why many networks cannot run a plan together, in a clause; empty where they can."""
    if together_of(plan) is None:
        launches = sum(len(launch_of(step).phases) for step in plan.steps)
        return (
            f"only a step that runs on chip as a whole takes many networks at once, and this one "
            f"is {launches} launches"
        )
    if not gathers_itself(samples.images.shape[1:], samples.shift, crops):
        return "crops of another size, moved colours and mean images take a launch of their own"
    return ""


@dataclass(frozen=True)
class _Tables:
    """Where a job's tables lie in a slab."""

    order: int
    rates: int
    draws: int
    clock: int


class _Layout:
    """What lies where in a slab.

    Plans run one after the other, and what one leaves behind in its own memory no other needs, nor
    does itself in another graph: so they share it.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.nbytes = 0
        self.persistent = self._take(max(job.plan.arenas.get(PERSISTENT, 0) for job in jobs))
        self.work = self._take(max(own_arenas(job.plan)[""] for job in jobs))
        self.tables = [
            _Tables(
                order=self._take(8 * job.steps * job.plan.spec("input").shape[0]),
                rates=self._take(8 * job.steps * _rates(job.plan)),
                draws=self._take(draw_bytes(job.data, job.crops)),
                clock=self._take(8 * _CLOCK),
            )
            for job in jobs
        ]

    def _take(self, nbytes: int) -> int:
        start = self.nbytes
        self.nbytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return start


def member_bytes(jobs: Sequence[Job]) -> int:
    """Bytes of device memory that each network takes, its reports included."""
    return _Layout(jobs).nbytes + sum(3 * 4 * job.steps for job in jobs)


def _gather(job: Job) -> Specialisation:
    """What would make the job's batches; its constants say what the data set is."""
    gather, _ = kernels(job.data.shape, _rates(job.plan), job.crops, job.data.floats)
    return gather


def _shape(job: Job) -> tuple[int, int, int]:
    """(C, H, W) of what the crops make of an image."""
    data: ResidentData = job.data
    return data.shape if job.crops is None else job.crops.shape(data.shape)


def _rates(plan: Plan) -> int:
    hyper = plan.graph.specs.get("hyper")
    return hyper.size if hyper else 0


@dataclass(frozen=True)
class _Part:
    """Some bytes of an allocation."""

    whole: Allocation
    address: int
    nbytes: int


class MemberMemory:
    """Memory for ``count`` networks that do the same jobs, and what runs them.

    Raises:
        KernelError: a kernel cannot be compiled.
        OutOfMemoryError: it does not fit.
    """

    def __init__(self, gpu: Gpu, jobs: Sequence[Job], count: int) -> None:
        self._gpu = gpu
        self._jobs = tuple(jobs)
        self._layout = _Layout(jobs)
        self.count = count
        self.stride = self._layout.nbytes
        # All at once, so that they compile side by side.
        gpu.load(phase.kernel for job in jobs for phase in many_phases(job.plan, _gather(job)))
        self._slabs = gpu.allocate(count * self.stride)

    def storage(self, member: int, plan: Plan) -> CudaStorage:
        """A member's persistent tensors, laid out as in ``plan``; it keeps all slabs alive."""
        address = self._slabs.address + member * self.stride + self._layout.persistent
        arena = _Part(self._slabs, address, plan.arenas.get(PERSISTENT, 0))
        return CudaStorage(plan, self._gpu, arena)

    def runner(self, job: int) -> MemberSteps:
        """What runs a job for all members."""
        placed = _Placed(self._jobs[job].plan, self._slabs, self._layout)
        tables = self._layout.tables[job]
        return MemberSteps(self._gpu, self._jobs[job], placed, tables, self.count)


class _Placed:
    """Where the first member's tensors lie; it keeps all slabs alive."""

    def __init__(self, plan: Plan, slabs: Allocation, layout: _Layout) -> None:
        self.plan = plan
        self._slabs = slabs
        self.slab = slab = slabs.address
        self.stride = layout.nbytes
        own = own_arenas(plan)
        self._arenas = {
            name: slab + (layout.persistent if name == PERSISTENT else layout.work + own[name])
            for name in plan.arenas
        }

    def place(self, buffer: str) -> int:
        """The address of a tensor or workspace of the plan."""
        place = self.plan.buffers[buffer]
        return self._arenas[place.arena] + place.offset


class MemberSteps:
    """Runs the steps of a job for all members at once, with kernels that have been loaded.

    Raises:
        DeviceError: a block cannot have as much shared memory.
    """

    def __init__(self, gpu: Gpu, job: Job, placed: _Placed, tables: _Tables, members: int) -> None:
        self._gpu = gpu
        self._job = job
        self._placed = placed
        self._tables = tables
        self.members = members
        self.batch_size = checked_plan(job.plan, _shape(job))
        self._reports = Reports(gpu, job.steps, members=members)
        self._given: dict[tuple[int, str], np.ndarray | None] = {}
        self._steps = self._asked = self._first_step = 0
        self._left_off = [False] * members
        made = together_of(job.plan)
        assert made is not None
        gather = _gather(job)
        self.prologue = self._prepared(told(made.prologue, gather))
        self.calls = self._prepared(told(made.phases, gather))
        self._replay = Replay(gpu, self.calls, self.prologue)

    @property
    def left(self) -> int:
        """Steps begun with ``begin`` that have not been asked for."""
        return self._steps - self._asked

    def prepare(self, runs: Iterable[int]) -> None:
        """Make the graphs of steps that come so many at a time."""
        self._replay.prepare(max((1, *runs)))

    def begin(
        self,
        orders: Sequence[np.ndarray],
        rates: Sequence[np.ndarray] | None,
        *,
        first_step: int = 0,
        draws: Sequence[np.ndarray] | None = None,
        left_off: Sequence[bool] = (),
    ) -> None:
        """Say what the next steps are; all steps begun before must have been reported.

        An array that a member was given before is taken to be unchanged.

        Args:
            orders: of each member, (steps, batch size) indices of samples.
            rates: of each member, (steps, values) float64; None for a plan that updates nothing.
            first_step: number of the first step, as ``counter`` has it.
            draws: of each member, (samples, 3), if there are crops.
            left_off: the members for which nothing is to be done; what is reported of them has no
                meaning.

        Raises:
            ShapeError: tables of other shapes.
            ConvloomError: indices, or draws, out of range.
        """
        data, width = self._job.data, _rates(self._job.plan)
        (steps,) = {len(order) for order in orders}
        self._steps, self._asked = steps, 0
        checks: dict[str, Callable[[Any], np.ndarray | None]] = {
            "order": lambda order: checked_order(order, self.batch_size, data.samples),
            "rates": lambda rates: checked_rates(rates, steps, width),
            "draws": lambda draws: checked_draws(draws, data, self._job.crops),
        }
        for member in range(self.members):
            for (name, check), values in zip(checks.items(), (orders, rates, draws), strict=True):
                self._give(member, name, None if values is None else values[member], check)
        self._left_off = list(left_off) or [False] * self.members
        self._set_clocks(first_step)

    def ask(self, most: int = REPETITIONS, step: int | None = None) -> Asked:
        """Ask for up to ``most`` of the steps left, as many as one graph holds.

        ``results`` has losses (steps, members) and right answers (steps, members, 2).

        Args:
            step: number of the first of them, where steps of other plans came in between.
        """
        assert self.left > 0
        if step is not None and step != self._first_step + self._asked:
            self._set_clocks(step - self._asked)
        length = next(self._replay.lengths(min(most, self.left)))
        self._replay.launch(length)
        results = self._reports.results(self._asked, length)
        self._asked += length
        return Asked(length, results)

    def _set_clocks(self, first_step: int) -> None:
        """Say which row comes next, and what number the step of row 0 has, or would have."""
        self._first_step = first_step
        for member, gone in enumerate(self._left_off):
            clock = np.array([self._asked, first_step, 0, gone], np.uint64)
            self._gpu.upload(self._address("clock", member), clock)

    def _give(
        self,
        member: int,
        name: str,
        value: np.ndarray | None,
        check: Callable[[Any], np.ndarray | None],
    ) -> None:
        key = member, name
        if value is not None and self._given.get(key) is value:
            return
        table = check(value)
        if table is not None:
            self._gpu.upload(self._address(name, member), table)
        self._given[key] = value

    def _address(self, table: str, member: int = 0) -> int:
        offset: int = getattr(self._tables, table)
        return self._placed.slab + offset + member * self._placed.stride

    def _prepared(self, phases: Sequence[Phase]) -> tuple[Callable[[], None], ...]:
        images, labels, scale, shift = self._job.data.addresses
        given = {
            "images": images,
            "labels": labels,
            "scale": scale,
            "shift": shift,
            "order": self._address("order"),
            "draws": self._address("draws") if self._job.crops else 0,
            "rates": self._address("rates") if _rates(self._job.plan) else 0,
            "clock": self._address("clock"),
            "losses": self._reports.tables[0],
            "corrects": self._reports.tables[1],
            "place": 0,
            "members": self.members,
            "stride": self._placed.stride,
        }
        calls = []
        for phase in phases:
            parts = phase.blocks
            if Fed("parts") in phase.arguments:
                parts = parts_of(phase.blocks, self.members)
            call = fed_call(self._placed, phase, {**given, "parts": parts})
            calls.append(replace(call, blocks=self.members * parts))
        return tuple(map(self._gpu.prepare, calls))
