"""A plan bound to memory: stretches of compiled steps in one call each, NumPy steps between."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from convloom.backends.cpu.jit import Jit
from convloom.backends.cpu.launch import Argument, CpuLaunch, Phase, Specialisation, Tensor
from convloom.backends.cpu.launch import Workspace as WorkspaceArgument
from convloom.backends.cpu.pool import Pool, default_threads, shared_pool
from convloom.backends.cpu.storage import CpuStorage, allocate
from convloom.backends.host import HostExecutable, TensorMemory
from convloom.ir import Node, Plan, Step


class CpuExecutable(HostExecutable):
    """Runs a plan. Kernels are compiled, and every address is fixed, on construction."""

    def __init__(self, plan: Plan, storage: CpuStorage, jit: Jit | None) -> None:
        super().__init__(plan, storage, allocate)
        self._storage = storage
        self._threads = default_threads()
        launches = [s.selection.launch for s in plan.steps if s.selection.launch is not None]
        addresses: dict[Specialisation, int] = {}
        pool: Pool | None = None
        if jit is not None and launches:
            addresses = jit.load(p.kernel for launch in launches for p in launch.phases)
            pool = shared_pool(jit.runtime())
        self._single = [self._part([step], addresses, pool) for step in plan.steps]
        self._parts = [self._part(run, addresses, pool) for run in _stretches(plan.steps)]

    @property
    def storage(self) -> CpuStorage:
        """The persistent memory, shared with the network's other executables."""
        return self._storage

    @property
    def threads(self) -> int:
        """Threads that a run uses."""
        return self._threads

    def set_num_threads(self, threads: int) -> None:
        """Use this many threads from now on; results do not depend on it."""
        if threads < 1:
            raise ValueError(f"the number of threads must be at least 1, it is {threads}")
        self._threads = threads

    def run(self) -> None:
        """Run every step once."""
        self._written.clear()
        for part in self._parts:
            part(self._threads)

    def run_step(self, index: int) -> None:
        """Run one step alone, for profiles and watched runs; its inputs must have been made."""
        self._written.clear()
        self._single[index](self._threads)

    def _part(
        self, steps: Sequence[Step], addresses: dict[Specialisation, int], pool: Pool | None
    ) -> Callable[[int], None]:
        if steps[0].selection.launch is None:
            (step,) = steps
            return _ReferenceStep(step.node, self._tensors)
        if pool is None:
            raise ValueError("the plan holds compiled kernels, but no C++ compiler was found")
        calls = []
        for step in steps:
            for phase in _launch(step).phases:
                if phase.items > 0:
                    words = [self._word(argument, step) for argument in phase.arguments]
                    calls.append((addresses[phase.kernel], words, phase))
        return _Stretch(calls, pool)

    def _word(self, argument: Argument, step: Step) -> int:
        """An argument as the 64-bit word of abi.h's ``Arg``."""
        if isinstance(argument, Tensor):
            return self._tensors[argument.name].address + argument.offset
        if isinstance(argument, WorkspaceArgument):
            assert step.workspace is not None
            buffer = self._plan.buffers[step.workspace]
            arena = self._arenas[buffer.arena]
            return int(arena.ctypes.data) + buffer.offset + argument.offset
        if isinstance(argument, float):
            (word,) = struct.unpack("<q", struct.pack("<d", argument))
            return int(word)
        return argument


class _Stretch:
    """Consecutive compiled steps, run by one call of the pool."""

    def __init__(self, calls: list[tuple[int, list[int], Phase]], pool: Pool) -> None:
        self._pool = pool
        self._count = len(calls)
        self._scratch = max((phase.scratch for _, _, phase in calls), default=0)
        self._words = np.array([word for _, words, _ in calls for word in words], np.int64)
        records, place = [], int(self._words.ctypes.data)
        for kernel, words, phase in calls:
            records.append((kernel, place, phase.items))
            place += 8 * len(words)
        self._phases = np.array(records, np.int64)
        self._address = int(self._phases.ctypes.data)

    def __call__(self, threads: int) -> None:
        if self._count:
            self._pool.run(self._address, self._count, threads, self._scratch)


class _ReferenceStep:
    """One op run by its NumPy reference, on logical arrays."""

    def __init__(self, node: Node, tensors: dict[str, TensorMemory]) -> None:
        self._op = node.op
        self._inputs = [tensors[name] for name in node.inputs]
        self._outputs = [tensors[name] for name in node.outputs]

    def __call__(self, threads: int) -> None:
        # Overflow and NaN are values here, as in every compiled kernel.
        with np.errstate(all="ignore"):
            results = self._op.reference(*(tensor.logical() for tensor in self._inputs))
        for tensor, result in zip(self._outputs, results, strict=True):
            tensor.write(result)


def _stretches(steps: Iterable[Step]) -> list[list[Step]]:
    """Maximal runs of compiled steps; each NumPy step stands alone."""
    stretches: list[list[Step]] = []
    previous_compiled = False
    for step in steps:
        compiled = step.selection.launch is not None
        if compiled and previous_compiled:
            stretches[-1].append(step)
        else:
            stretches.append([step])
        previous_compiled = compiled
    return stretches


def _launch(step: Step) -> CpuLaunch:
    launch = step.selection.launch
    assert isinstance(launch, CpuLaunch)
    return launch
