"""A plan bound to memory, each launch run by the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.backends.cpu.pool import default_threads
from convloom.backends.cuda.launch import Argument, Fed, Phase, Specialisation, Tensor, launch_of
from convloom.backends.cuda.launch import Workspace as WorkspaceArgument
from convloom.backends.cudasim.build import Function, Workshop
from convloom.backends.cudasim.machine import Call, Extent, Pointer, Settings
from convloom.backends.cudasim.memory import ArenaMaker, CudaSimStorage
from convloom.backends.cudasim.modes import SimulationError, patience
from convloom.backends.host import HostExecutable
from convloom.ir import Plan, Step


@dataclass(frozen=True)
class _Step:
    """The launches of a step.

    Attributes:
        before: launches of the prologue.
        constant: bytes that they may read only.
        made: bytes that hold nothing yet when the step begins.
        lasting: bytes that hold nothing yet when the prologue begins, but keep what they hold.
    """

    title: str
    before: tuple[Call, ...]
    calls: tuple[Call, ...]
    constant: tuple[Extent, ...]
    made: tuple[Extent, ...]
    lasting: tuple[Extent, ...]


class CudaSimExecutable(HostExecutable):
    """Runs a plan. Kernels are compiled, and launches checked, on construction."""

    def __init__(self, plan: Plan, storage: CudaSimStorage, workshop: Workshop) -> None:
        self._maker = ArenaMaker(workshop.machine)
        super().__init__(plan, storage, self._maker.allocate)
        self._storage = storage
        self._workshop = workshop
        self._settings = Settings(workers=default_threads(), patience=patience(workshop.mode))
        self._numbers = {
            name: (storage.maker if arena is storage.arena else self._maker).number(arena)
            for name, arena in self._arenas.items()
        }
        self._arena_of = {number: name for name, number in self._numbers.items()}
        functions = workshop.load(
            kernel for step in plan.steps for kernel in launch_of(step).kernels
        )
        self._steps = [self._step(step, functions) for step in plan.steps]

    @property
    def storage(self) -> CudaSimStorage:
        """The persistent memory, shared with the network's other executables."""
        return self._storage

    @property
    def threads(self) -> int:
        """Threads that run blocks."""
        return self._settings.workers

    def set_num_threads(self, threads: int) -> None:
        """Run blocks on this many threads from now on; results do not depend on it."""
        if threads < 1:
            raise ValueError(f"the number of threads must be at least 1, it is {threads}")
        self._settings = self._settings._replace(workers=threads)

    def run_step(self, index: int) -> None:
        """Run one step alone, its prologue included; its inputs must have been made.

        Raises:
            SimulationError: a kernel did what no kernel may.
        """
        self.run_prologue(index)
        self.run_phases(index)

    def run_prologue(self, index: int) -> None:
        """Run what comes before the first of runs of a step that follow each other directly."""
        step = self._steps[index]
        self._run(step, step.before, step.lasting)

    def run_phases(self, index: int) -> None:
        """Run a step whose prologue, or which itself, was the last to run of all that write."""
        step = self._steps[index]
        self._written.clear()
        self._run(step, step.calls, step.made)

    def _run(self, step: _Step, calls: tuple[Call, ...], empty: tuple[Extent, ...]) -> None:
        for extent in empty:
            # NaN in every float type: a kernel that adds to what it should set is found out.
            self._bytes(extent)[...] = 0xFF
        for call in calls:
            if self._workshop.mode.orders > 1:
                self._launch_in_orders(step, call)
            else:
                self._launch(step, call, self._settings)

    def _launch(self, step: _Step, call: Call, settings: Settings) -> None:
        error = self._workshop.launch(call, settings)
        if error:
            raise SimulationError(f"{step.title}: kernel {call.kernel}, {error}")

    def _launch_in_orders(self, step: _Step, call: Call) -> None:
        """Run a launch again and again from the same memory, its threads in other orders."""
        before = self._snapshot(call.open)
        first: list[np.ndarray] | None = None
        for order in range(self._workshop.mode.orders):
            for extent, bytes_ in zip(call.open, before, strict=True):
                self._bytes(extent)[...] = bytes_
            self._launch(step, call, self._settings._replace(order=order))
            after = self._snapshot(call.open)
            if first is None:
                first = after
                self._check_constants(step, call, before, after)
            elif any(not np.array_equal(a, b) for a, b in zip(first, after, strict=True)):
                raise SimulationError(
                    f"{step.title}: kernel {call.kernel}, its results change with the order in "
                    "which threads and blocks run; look for a missing barrier, or for two threads "
                    "that write one element"
                )

    def _check_constants(
        self, step: _Step, call: Call, before: list[np.ndarray], after: list[np.ndarray]
    ) -> None:
        for extent, old, new in zip(call.open, before, after, strict=True):
            if extent in step.constant and not np.array_equal(old, new):
                raise SimulationError(
                    f"{step.title}: kernel {call.kernel} writes to an input of its step"
                )

    def _snapshot(self, extents: Sequence[Extent]) -> list[np.ndarray]:
        return [self._bytes(extent).copy() for extent in extents]

    def _bytes(self, extent: Extent) -> np.ndarray:
        arena = self._arenas[self._arena_of[extent.arena]]
        return arena[extent.offset : extent.offset + extent.nbytes]

    def _step(self, step: Step, functions: Mapping[Specialisation, Function]) -> _Step:
        launch = launch_of(step)
        inputs = self._extents(step.node.inputs)
        made = self._extents(step.node.outputs)
        scratch = [] if step.workspace is None else self._extents([step.workspace])
        lasting = scratch if step.selection.lasting else []
        written = [*made, *scratch]
        empty = [extent for extent in written if extent not in lasting]

        def calls(phases: Sequence[Phase]) -> tuple[Call, ...]:
            ran = [phase for phase in phases if phase.blocks > 0]
            return tuple(self._call(step, phase, functions[phase.kernel]) for phase in ran)

        return _Step(
            title=step.node.title,
            before=calls(launch.prologue),
            calls=calls(launch.phases),
            constant=tuple(i for i in inputs if not any(_overlap(i, o) for o in written)),
            made=tuple(o for o in empty if not any(_overlap(i, o) for i in inputs)),
            lasting=tuple(lasting),
        )

    def _call(self, step: Step, phase: Phase, function: Function) -> Call:
        arguments = tuple(self._argument(argument, step) for argument in phase.arguments)
        _check_arguments(step, phase, function.letters)
        return Call(
            library=function.library,
            entry=function.entry,
            kernel=phase.kernel.name,
            arguments=arguments,
            blocks=phase.blocks,
            threads=phase.threads,
            shared=phase.shared,
            cluster=phase.kernel.cluster,
            arenas=tuple(self._numbers.values()),
            open=self._open(step),
        )

    def place(self, buffer: str) -> int:
        """The address of a tensor or workspace of the plan."""
        place = self._plan.buffers[buffer]
        return int(self._arenas[place.arena].ctypes.data) + place.offset

    def _argument(self, argument: Argument | Fed, step: Step) -> Pointer | int | float:
        if isinstance(argument, Tensor):
            buffer = self._plan.buffers[argument.name]
        elif isinstance(argument, WorkspaceArgument):
            assert step.workspace is not None
            buffer = self._plan.buffers[step.workspace]
        elif isinstance(argument, Fed):
            raise ValueError(f"{step.node.title} needs a data set for {argument.name}")
        else:
            return argument
        return Pointer(self._numbers[buffer.arena], buffer.offset + argument.offset)

    def _open(self, step: Step) -> tuple[Extent, ...]:
        """What a step may touch: its tensors and its workspace."""
        names = [*step.node.inputs, *step.node.outputs]
        if step.workspace is not None:
            names.append(step.workspace)
        return tuple(dict.fromkeys(self._extents(names)))

    def _extents(self, names: Iterable[str]) -> list[Extent]:
        buffers, specs = self._plan.buffers, self._plan.graph.specs
        return [
            Extent(
                self._numbers[buffers[name].arena],
                buffers[name].offset,
                specs[name].nbytes if name in specs else buffers[name].nbytes,
            )
            for name in names
        ]


def _overlap(a: Extent, b: Extent) -> bool:
    same = a.arena == b.arena
    return same and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _check_arguments(step: Step, phase: Phase, letters: str) -> None:
    """Raises SimulationError unless the launch's arguments fit the kernel's parameters."""
    given = "".join(_letter(argument) for argument in phase.arguments)
    fits = len(given) == len(letters) and all(
        mine == yours or (mine, yours) == ("f", "d") or (mine, yours, value) == ("i", "p", 0)
        for mine, yours, value in zip(given, letters, phase.arguments, strict=True)
    )
    if not fits:
        raise SimulationError(
            f"{step.node.title}: kernel {phase.kernel.name} takes parameters {letters!r} (p: "
            f"pointer, i: long long, f: float, d: double), its launch gives {given!r}"
        )


def _letter(argument: Argument | Fed) -> str:
    if isinstance(argument, Tensor | WorkspaceArgument | Fed):
        return "p"
    return "f" if isinstance(argument, float) else "i"
