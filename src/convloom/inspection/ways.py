"""The ways in which training steps run: how a batch comes, and how kernels are launched.

Each way is a contender for ``timing``: it has its own plan and memory, starts from the workload's
weights, and begins with the workload's first batch, so that all of them must give the same first
loss.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from convloom import normalise
from convloom.backends.base import Backend, Executable
from convloom.backends.cuda import measure
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.feeding import Asked, Samples, device_input, has_device_input
from convloom.inspection.timing import Contender, wall_seconds
from convloom.inspection.workload import Workload
from convloom.ir import Plan
from convloom.ops.control import counter_vector

#: Steps, or graphs of steps, that are asked for before the host waits for the first of them.
AHEAD = 8
#: More steps than any graph has.
_ALL = 1 << 30


class Runner(Contender, Protocol):
    """A contender that can be tried first."""

    def start(self) -> float:
        """The first step, its outputs poisoned before; returns its loss."""
        ...


@dataclass(frozen=True)
class Way:
    """How batches come and kernels are launched.

    Attributes:
        name: as tables show it.
        idea: what it adds to the way before it.
        feed: ``host``, ``pageable``, ``pinned``, ``stream`` or ``resident``.
        graphs: whether a step is one graph.
        unrolled: whether a graph holds many steps.
        threads: of the CPU; None takes all.
    """

    name: str
    idea: str
    feed: str
    graphs: bool = False
    unrolled: bool = False
    threads: int | None = None


HOST = Way("host", "batches lie where the kernels read them", "host")
PAGEABLE = Way(
    "pageable",
    "each batch is copied from ordinary memory, each kernel launched by itself, each loss awaited",
    "pageable",
)
PINNED = Way("pinned", "batches pass through page-locked memory, which the device reads", "pinned")
STREAM = Way(
    "stream",
    "three pinned buffers on a stream of their own: copies run beside the step before, and the "
    "host waits for no step",
    "stream",
)
RESIDENT = Way(
    "resident", "the data set lies in the device's memory and a kernel gathers batches", "resident"
)
GRAPH = Way("graph", "a step is one graph: one launch instead of many", "resident", graphs=True)
UNROLLED = Way("unrolled", "many steps in one graph: few launches an epoch", "resident", True, True)


def ways(backend: Backend) -> tuple[Way, ...]:
    """How a backend can run steps, each way with one idea more than the one before."""
    fed = (PAGEABLE, PINNED) if isinstance(backend, CudaBackend) else (HOST,)
    if not has_device_input(backend):
        return (*fed, _GRAPH_FED) if isinstance(backend, CudaBackend) else fed
    return (*fed, STREAM, RESIDENT, GRAPH, UNROLLED)


#: Where a backend offers neither stream nor resident data.
_GRAPH_FED = Way("graph", "a step is one graph: one launch instead of many", "pinned", graphs=True)


def prepare(backend: Backend, workload: Workload, plan: Plan, way: Way) -> Runner:
    """A contender for a plan of this backend.

    Raises:
        ConvloomError: kernels that cannot be compiled, memory that does not suffice.
    """
    if isinstance(backend, CudaBackend) and way.feed in ("pageable", "pinned"):
        return _Fed(backend, workload, plan, way)
    if way.feed in ("stream", "resident"):
        if isinstance(backend, CudaBackend) and not way.graphs:
            backend = measure.without_graphs(backend)
        kind = _Streamed if way.feed == "stream" else _Resident
        return kind(backend, workload, plan, way)
    return _Host(backend, workload, plan, way)


class _Host:
    """A step whose batch the host writes where the kernels read it."""

    def __init__(self, backend: Backend, workload: Workload, plan: Plan, way: Way) -> None:
        self._executable, self._storage = workload.bind(backend, plan)
        set_threads = getattr(self._executable, "set_num_threads", None)
        if way.threads is not None and set_threads is not None:
            set_threads(way.threads)
        self._batches = itertools.cycle(workload.batches)
        self._numbers = itertools.count()

    def start(self) -> float:
        poison = getattr(self._executable, "poison", None)
        if poison is not None:
            poison()
        return self._step()

    def run(self, steps: int) -> float:
        def work() -> None:
            for _ in range(steps):
                self._step()

        return wall_seconds(work)

    def _step(self) -> float:
        _write_batch(self._executable, next(self._batches), next(self._numbers))
        self._executable.run()
        return float(self._executable.read("loss"))


class _Fed:
    """A step on a GPU whose batch the host copies, and whose loss it awaits."""

    def __init__(self, backend: CudaBackend, workload: Workload, plan: Plan, way: Way) -> None:
        self._executable = _cuda(workload.bind(backend, plan)[0])
        self._gpu = self._executable.gpu
        self._way = way
        self._batches = itertools.cycle(workload.batches)
        self._numbers = itertools.count()

    def start(self) -> float:
        measure.poison(self._executable)
        _write_batch(self._executable, next(self._batches), next(self._numbers))
        self._executable.run()  # the first run goes launch by launch and names what fails
        return float(self._executable.read("loss"))

    def run(self, steps: int) -> float:
        def work() -> None:
            for _ in range(steps):
                self._step()

        return measure.device_seconds(self._gpu, work)

    def _step(self) -> float:
        batch, number = next(self._batches), next(self._numbers)
        if self._way.feed == "pageable":
            for name, values in zip(("input", "target"), batch, strict=True):
                measure.upload_pageable(self._gpu, self._executable.address(name), values)
            _write_counter(self._executable, number)
        else:
            _write_batch(self._executable, batch, number)
        if self._way.graphs:
            self._executable.run()
        else:
            for call in (*self._executable.prologue, *self._executable.calls):
                call()
        return float(self._executable.read("loss"))


class _OnDevice(ABC):
    """Steps that the host asks for without waiting for each."""

    def __init__(self, backend: Backend, workload: Workload, plan: Plan, way: Way) -> None:
        self._executable, storage = workload.bind(backend, plan)
        ways_in = device_input(backend, storage)
        assert ways_in is not None, "ways() offers this where there is a way in only"
        self._ways_in = ways_in
        self._workload = workload
        self._way = way
        self._done = 0

    def start(self) -> float:
        if isinstance(self._executable, CudaExecutable):
            measure.poison(self._executable)
        (loss,) = self._losses(1)
        return loss

    def run(self, steps: int) -> float:
        def work() -> None:
            for _ in self._losses(steps):
                pass

        if isinstance(self._executable, CudaExecutable):
            return measure.device_seconds(self._executable.gpu, work)
        return wall_seconds(work)

    def _losses(self, steps: int) -> Iterator[float]:
        waiting: deque[Asked] = deque()
        for asked in self._asked(steps):
            waiting.append(asked)
            if len(waiting) > AHEAD:
                yield from waiting.popleft().results().losses.tolist()
        while waiting:
            yield from waiting.popleft().results().losses.tolist()

    @abstractmethod
    def _asked(self, steps: int) -> Iterator[Asked]: ...


class _Streamed(_OnDevice):
    def __init__(self, backend: Backend, workload: Workload, plan: Plan, way: Way) -> None:
        super().__init__(backend, workload, plan, way)
        size = workload.batch_size
        self._batches = [(workload.images[o], workload.labels[o]) for o in workload.order[:8]]
        images, labels = self._batches[0]
        ring = self._ways_in.ring(_samples(workload, images, labels), size)
        self._runner = self._ways_in.streamed(self._executable, ring)

    def _asked(self, steps: int) -> Iterator[Asked]:
        for _ in range(steps):
            images, labels = self._batches[self._done % len(self._batches)]
            yield self._runner.ask(images, labels, self._workload.hyper, self._done)
            self._done += 1


class _Resident(_OnDevice):
    def __init__(self, backend: Backend, workload: Workload, plan: Plan, way: Way) -> None:
        super().__init__(backend, workload, plan, way)
        data = self._ways_in.upload(_samples(workload, workload.images, workload.labels))
        self._runner = self._ways_in.resident(self._executable, data, None)
        self._rates = workload.rates

    def _asked(self, steps: int) -> Iterator[Asked]:
        order = self._workload.order
        while steps > 0:
            count = min(steps, len(order))
            self._runner.begin(order[:count], self._rates[:count], first_step=self._done)
            while self._runner.left:
                yield self._runner.ask(_ALL if self._way.unrolled else 1)
            self._done += count
            steps -= count


def _samples(workload: Workload, images: np.ndarray, labels: np.ndarray) -> Samples:
    scale, shift = normalise.coefficients(workload.mean, workload.std)
    return Samples(images, labels, scale.reshape(-1), shift.reshape(-1))


def _write_batch(executable: Executable, batch: tuple[np.ndarray, np.ndarray], step: int) -> None:
    for name, value in zip(("input", "target"), batch, strict=True):
        executable.write(name, value)
    _write_counter(executable, step)


def _write_counter(executable: Executable, step: int) -> None:
    if "counter" in executable.storage.layouts:
        executable.write("counter", counter_vector(0, step))


def _cuda(executable: Executable) -> CudaExecutable:
    assert isinstance(executable, CudaExecutable)
    return executable
