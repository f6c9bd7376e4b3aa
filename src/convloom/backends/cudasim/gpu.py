"""The device beneath resident and streamed batches (cuda/gpu.py), simulated: all is done at once.

Only kernels outside plans come this way (gather, record). What streams, events and graphs are for
does not exist here; their order is what the calls come in.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from convloom.backends.cpu.pool import default_threads
from convloom.backends.cuda.gpu import Call, Mark
from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cudasim.build import Function, Workshop
from convloom.backends.cudasim.executable import CudaSimExecutable
from convloom.backends.cudasim.machine import Call as Launch
from convloom.backends.cudasim.machine import Extent, Pointer, Settings
from convloom.backends.cudasim.memory import ArenaMaker, rest_of_arena
from convloom.backends.cudasim.modes import SimulationError, patience
from convloom.ir import Plan


class SimulatedMemory:
    """Bytes that kernels can reach."""

    def __init__(self, workshop: Workshop, nbytes: int) -> None:
        self._maker = ArenaMaker(workshop.machine)
        self._bytes = self._maker.allocate(nbytes)
        self.nbytes = nbytes
        self.address = int(self._bytes.ctypes.data) if nbytes else 0


class SimulatedPinned:
    """Host memory, as all memory here."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros(nbytes, np.uint8)


class SimulatedGpu:
    """Copies and launches of the simulator, under the names they have on a GPU."""

    name = "the simulator"
    arch = "sim"

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._settings = Settings(workers=default_threads(), patience=patience(workshop.mode))
        self._functions: dict[Specialisation, Function] = {}

    def free_bytes(self) -> int:
        """Memory of this machine that nobody uses."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def allocate(self, nbytes: int) -> SimulatedMemory:
        """Memory, zeroed."""
        return SimulatedMemory(self._workshop, nbytes)

    def pinned(self, nbytes: int) -> SimulatedPinned:
        """Host memory."""
        return SimulatedPinned(nbytes)

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy a contiguous array to an address."""
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, address: int, values: np.ndarray) -> None:
        """Copy from an address into a contiguous array."""
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def download_later(self, address: int, values: np.ndarray) -> None:
        """The same."""
        self.download(address, values)

    def upload_aside(self, address: int, values: np.ndarray, after: Mark) -> Mark:
        """Copy a contiguous array to an address."""
        self.upload(address, values)
        return after

    def follow(self, mark: Mark) -> None:
        """Nothing: all that was asked for is done."""

    def load(self, kernels: Iterable[Specialisation]) -> None:
        """Compile and load kernels. Raises CompilerError."""
        self._functions.update(self._workshop.load(kernels))

    def prepare(self, call: Call) -> Callable[[], None]:
        """A function that launches ``call``, whose kernel has been loaded.

        The function raises SimulationError where the kernel does what no kernel may.
        """
        launch = self._launch(call)

        def run() -> None:
            error = self._workshop.launch(launch, self._settings)
            if error:
                raise SimulationError(f"{call.title}: kernel {call.kernel.name}, {error}")

        return run

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself: it makes the same launches every time."""
        return work

    def mark(self) -> Mark:
        """Now."""
        return _nothing

    def synchronize(self) -> None:
        """Nothing: all that was asked for is done."""

    def _launch(self, call: Call) -> Launch:
        function = self._functions[call.kernel]
        # Where a kernel takes a pointer, a word is an address; it may touch all that follows there.
        pairs = list(zip(call.words, function.letters, strict=True))
        extents = {word: rest_of_arena(int(word)) for word, kind in pairs if kind == "p" and word}
        arguments = tuple(
            Pointer(extents[word].arena, extents[word].offset) if kind == "p" and word else word
            for word, kind in pairs
        )
        return Launch(
            library=function.library,
            entry=function.entry,
            kernel=call.kernel.name,
            arguments=arguments,
            blocks=call.blocks,
            threads=call.threads,
            shared=call.shared,
            arenas=tuple(dict.fromkeys(extent.arena for extent in extents.values())),
            open=_joined(extents.values()),
            cluster=call.kernel.cluster,
        )


class SimulatedSteps:
    """An executable of the simulator as a list of launches."""

    def __init__(self, executable: CudaSimExecutable) -> None:
        self._executable = executable
        steps = range(len(executable.plan.steps))
        self.prologue: Sequence[Callable[[], None]]
        self.prologue = [partial(executable.run_prologue, i) for i in steps]
        self.calls: Sequence[Callable[[], None]]
        self.calls = [partial(executable.run_phases, i) for i in steps]

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self._executable.plan

    def address(self, name: str) -> int:
        """Where a tensor lies; 0 for one that this plan does not have."""
        return self._executable.address(name)

    def place(self, buffer: str) -> int:
        """Where a tensor or workspace of the plan lies."""
        return self._executable.place(buffer)

    def warm_up(self) -> None:
        """One run."""
        self._executable.run()


def _joined(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """From the first address in each arena to its end."""
    first: dict[int, Extent] = {}
    for extent in sorted(extents, key=lambda one: one.offset):
        first.setdefault(extent.arena, extent)
    return tuple(first.values())


def _nothing() -> None:
    pass
