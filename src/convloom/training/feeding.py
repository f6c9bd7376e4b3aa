"""Where a step's batch comes from: the host, one by one, or the device's own memory.

A *feed* runs the steps of an epoch and reports them in order:

    plain      the host makes each batch, runs the step and reads its loss
    resident   the data set lies in the device's memory; the host asks for many steps at a time
    stream     batches are copied while the steps before them run

The last two report a step while later ones run. All three give the same bits, and a feed that was
asked to stop has run exactly the steps that it reported.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeGuard

import numpy as np

from convloom.backends import DeviceError, Executable
from convloom.backends.feeding import (
    Asked,
    Crops,
    DeviceInput,
    ResidentRunner,
    Results,
    Samples,
    StreamRunner,
)
from convloom.ir import ConvloomError
from convloom.ir.printing import quantity
from convloom.training.pace import Pace, Part
from convloom.training.protocols import (
    Batch,
    Batches,
    DeviceBatches,
    DeviceEngine,
    Engine,
    StepResults,
)

_LOG = logging.getLogger("convloom")
#: The values of the Trainer's ``input``.
AUTO, RESIDENT, STREAM = INPUTS = ("auto", "resident", "stream")

#: Batches that are made while the step before them runs.
PREFETCH = 2
#: Share of the device's free memory that a data set may take where nobody asked for it.
_FAIR_SHARE = 0.7
#: Reports that are awaited at a time: of graphs of many steps, or of single steps.
_GRAPHS_AHEAD, _STEPS_AHEAD = 4, 12


class InputError(ConvloomError, ValueError):
    """A way of input that the device or the data set does not have; the message says which do."""


@dataclass(frozen=True)
class Course:
    """What is asked of the steps of an epoch.

    Attributes:
        hyper: the hyper values of each step, by name.
        settled: whether step i must be reported before any later one begins.
        stop: whether to begin no further step.
        another: whether the next epoch will be asked for.
    """

    hyper: Sequence[Mapping[str, float]]
    settled: Callable[[int], bool] = lambda step: True
    stop: Callable[[], bool] = lambda: False
    another: bool = False

    def until_settled(self, step: int, most: int) -> int:
        """How many steps from ``step`` on may run without a look at the course: 1 to ``most``."""
        for count in range(1, most):
            if self.settled(step + count - 1):
                return count
        return max(1, most)


class Feed(Protocol):
    """Runs the steps of one data set on one engine."""

    @property
    def kind(self) -> str:
        """``plain``, ``resident`` or ``stream``."""
        ...

    def prepare(self, kind: str, sizes: Iterable[int], epoch: int | None = None) -> None:
        """Compile and bind what batches of these sizes run, for ``train`` or ``evaluate``.

        Args:
            epoch: which will be trained first, if that is known.
        """
        ...

    def train(self, epoch: int, start_batch: int, course: Course) -> Iterator[StepResults]:
        """Train on an epoch's batches from ``start_batch`` on, one for each row of the course;
        results come of as many steps at a time as run without the host."""
        ...

    def evaluate(self) -> Iterator[StepResults]:
        """Figures of each batch of epoch 0; nothing is updated."""
        ...


@contextlib.contextmanager
def finished(items: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Closes an iterator however its use ends; a thread that makes batches ahead then stops."""
    try:
        yield items
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def check_input(wanted: str, device: str, offered: bool) -> None:
    """Raises InputError for a way of input that a device does not have, or that is none."""
    if wanted not in INPUTS:
        raise InputError(f"input must be {', '.join(map(repr, INPUTS))}, it is {wanted!r}")
    if wanted != AUTO and not offered:
        raise InputError(
            f"input {wanted!r} is for GPUs (device cuda or cuda-sim); device {device} runs batches "
            "from the memory that they are made in, so leave input at 'auto'"
        )


def make_feed(
    engine: Engine, batches: Batches, wanted: str, *, kind: str, data: str, spare: int = 0
) -> Feed:
    """The feed for a data set: what was ``wanted``, or for ``auto`` the fastest that fits.

    Args:
        kind: ``train`` or ``evaluate``, what it will be used for.
        data: the data set's name, for messages.
        spare: bytes of the device's memory that others will need.

    Raises:
        InputError: the device, or the data set, does not have what was wanted.
    """
    device = engine.device_input() if isinstance(engine, DeviceEngine) else None
    check_input(wanted, engine.device, device is not None)
    if device is None or not isinstance(engine, DeviceEngine):
        return PlainFeed(engine, batches)
    if isinstance(batches, DeviceBatches) and wanted == RESIDENT:
        return _resident(engine, batches, device, data)
    if isinstance(batches, DeviceBatches) and wanted == AUTO:
        need, free = _need(engine, batches, kind) + spare, device.free_bytes()
        if need <= _FAIR_SHARE * free:
            return _resident(engine, batches, device, data)
        _LOG.info(
            "%s is streamed: with it, %sB would be taken of the %sB that are free on %s",
            *(data, quantity(need), quantity(free), engine.device),
        )
    if wanted == RESIDENT:
        raise InputError(
            f"input 'resident' needs a data set in memory, such as cl.data.load returns; {data} "
            "gives its batches one by one, so use input 'stream'"
        )
    return StreamFeed(engine, batches, device)


def batch_sizes(batches: Batches, samples: int, batch_size: int) -> list[int]:
    """The different sizes of an epoch's batches: that of the full ones, those of short ones."""
    if isinstance(batches, DeviceBatches):
        return list(dict.fromkeys(batches.sizes))
    sizes = (min(samples, batch_size), samples % batch_size)
    return [size for size in dict.fromkeys(sizes) if size]


def nbytes(batches: Batches) -> int:
    """Bytes of device memory that a data set takes; 0 where it cannot lie there."""
    if not isinstance(batches, DeviceBatches):
        return 0
    return batches.images.nbytes + 8 * len(batches.labels)


def _streams_pixels(batches: Batches) -> TypeGuard[DeviceBatches]:
    """Whether batches may go to a device as pixels, which it normalises all alike."""
    if not isinstance(batches, DeviceBatches):
        return False
    crops = batches.crops
    return crops is None or not Crops(*crops).noise


def _need(engine: DeviceEngine, batches: DeviceBatches, kind: str) -> int:
    """Bytes for the data set, and for one more plan as large as that of full batches."""
    size = min(batches.batch_size, len(batches.labels))
    return nbytes(batches) + sum(engine.executable(kind, size).plan.arenas.values())


def _resident(
    engine: DeviceEngine, batches: DeviceBatches, device: DeviceInput, data: str
) -> ResidentFeed:
    try:
        return ResidentFeed(engine, batches, device)
    except DeviceError as error:
        raise InputError(
            f"the data set {data} cannot be kept in the device's memory ({error}); "
            "use input 'stream'"
        ) from None


class PlainFeed:
    """The host makes each batch, runs the step and reads its loss."""

    kind = "plain"

    def __init__(self, engine: Engine, batches: Batches) -> None:
        self._engine = engine
        self._batches = batches

    def prepare(self, kind: str, sizes: Iterable[int], epoch: int | None = None) -> None:
        """Compile and bind what batches of these sizes run."""
        for size in sizes:
            self._engine.prepare(kind, size)

    def train(self, epoch: int, start_batch: int, course: Course) -> Iterator[StepResults]:
        """One step after the other; each is reported before the next one is made."""
        if not course.hyper:
            return
        with finished(self._batches.epoch(epoch, start_batch)) as batches:
            for batch, hyper in zip(batches, course.hyper, strict=True):
                self._engine.set_hyper(**hyper)
                yield StepResults.of(self._engine.train_step(batch.images, batch.labels))
                if course.stop():
                    return

    def evaluate(self) -> Iterator[StepResults]:
        """Figures of each batch of epoch 0."""
        with finished(self._batches.epoch(0)) as batches:
            for batch in batches:
                yield StepResults.of(self._engine.evaluate_step(batch.images, batch.labels))


#: An epoch's order, where its crops begin, and its samples' shifts.
_Drawn = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


@dataclass(frozen=True)
class Block:
    """Batches of one size that follow each other: number ``start`` to ``stop`` - 1 of an epoch."""

    size: int
    start: int
    stop: int


def blocks(sizes: Sequence[int]) -> Iterator[Block]:
    """The batches of an epoch, from the first to the last."""
    start = 0
    for size, batches in groupby(sizes):
        stop = start + len(list(batches))
        yield Block(size, start, stop)
        start = stop


def places_of(
    sizes: Sequence[int], size: int, start_batch: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The batches of a size from ``start_batch`` on: their numbers (batches,), and where in the
    epoch's order their samples stand (batches, size)."""
    whole = np.array(sizes, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(whole)])
    own = start_batch + np.flatnonzero(whole[start_batch:] == size)
    return own, starts[own, None] + np.arange(size)


class ResidentFeed:
    """The data set lies in the device's memory; the host asks for many steps at a time.

    Raises:
        DeviceError: it does not fit there.
        ConvloomError: a label that the network does not have.
    """

    kind = "resident"

    def __init__(self, engine: DeviceEngine, batches: DeviceBatches, device: DeviceInput) -> None:
        self._engine = engine
        self._batches = batches
        self._device = device
        crops = batches.crops
        self._crops = None if crops is None else Crops(*crops)
        engine.check_labels(batches.labels)
        scale, shift = batches.coefficients
        self._data = device.upload(Samples(batches.images, batches.labels, scale, shift))
        self._runners: dict[tuple[str, int], tuple[Executable, ResidentRunner]] = {}
        self._pace = Pace(engine.figures)
        self._thread = ThreadPoolExecutor(1, "convloom-order")
        self._early: dict[int, Future[_Drawn]] = {}

    def prepare(self, kind: str, sizes: Iterable[int], epoch: int | None = None) -> None:
        """Compile and bind what batches of these sizes run, and what makes them."""
        if epoch is not None:
            self._early = {epoch: self._thread.submit(self._draw, epoch)}
        counts = Counter(self._batches.sizes)
        for size in sizes:
            _, runner = self._runner(kind, size)
            runs = [b.stop - b.start for b in blocks(self._batches.sizes) if b.size == size]
            runner.prepare(counts[size] or 1, dict.fromkeys(runs or [1]))

    def train(self, epoch: int, start_batch: int, course: Course) -> Iterator[StepResults]:
        """Steps in graphs of many; their reports come while later ones run."""
        early = self._early.pop(epoch, None)
        drawn = self._draw(epoch) if early is None else early.result()
        if course.another:
            self._early = {epoch + 1: self._thread.submit(self._draw, epoch + 1)}
        rates = self._engine.hyper_rows(course.hyper)
        self._engine.begin_steps()
        asked = self._asked(drawn, start_batch, course, rates)
        return self._pace.reported(asked, _GRAPHS_AHEAD)

    def evaluate(self) -> Iterator[StepResults]:
        """Figures of each batch of epoch 0."""
        course = Course([{}] * len(self._batches), settled=lambda step: False)
        asked = self._asked((self._batches.order(0), None, None), 0, course, None)
        return self._pace.reported(asked, _GRAPHS_AHEAD)

    def _asked(
        self,
        drawn: _Drawn,
        start_batch: int,
        course: Course,
        rates: np.ndarray | None,
    ) -> Generator[Part, None, None]:
        """Asks for the steps, some at a time. Batches of each size are a plan of their own."""
        kind, batch = "evaluate" if rates is None else "train", start_batch
        self._begin(kind, drawn, start_batch, rates)
        for block in blocks(self._batches.sizes):
            executable, runner = self._runner(kind, block.size)
            while batch < block.stop:
                if course.stop():
                    return
                step = batch - start_batch
                most = course.until_settled(step, min(self._pace.most, block.stop - batch))
                with self._engine.lock:
                    asked = runner.ask(most, None if rates is None else self._engine.steps_done)
                    self._engine.ran(executable, 0 if rates is None else asked.steps)
                batch += asked.steps
                yield Part(asked, block.size, course.settled(batch - start_batch - 1))

    def _begin(self, kind: str, drawn: _Drawn, start_batch: int, rates: np.ndarray | None) -> None:
        """Tell the runner of each size what its batches from ``start_batch`` on are."""
        order, draws, shifts = drawn
        for size in dict.fromkeys(self._batches.sizes[start_batch:]):
            own, places = places_of(self._batches.sizes, size, start_batch)
            _, runner = self._runner(kind, size)
            runner.begin(
                order[places],
                None if rates is None else rates[own - start_batch],
                first_step=self._engine.steps_done,
                draws=draws,
                shifts=shifts,
            )

    def _draw(self, epoch: int) -> _Drawn:
        batches = self._batches
        return batches.order(epoch), batches.draws(epoch), batches.shifts(epoch)

    def _runner(self, kind: str, size: int) -> tuple[Executable, ResidentRunner]:
        if (kind, size) not in self._runners:
            crops = self._crops if kind == "train" else None
            executable = self._engine.executable(kind, size)
            runner = self._device.resident(executable, self._data, crops)
            self._runners[kind, size] = executable, runner
        return self._runners[kind, size]


class StreamFeed:
    """Batches are copied to the device while the steps before them run."""

    kind = "stream"

    def __init__(self, engine: DeviceEngine, batches: Batches, device: DeviceInput) -> None:
        self._engine = engine
        self._batches = batches
        self._device = device
        self._ring: Any = None
        self._runners: dict[tuple[str, int], tuple[Executable, StreamRunner]] = {}
        self._pace = Pace(engine.figures)

    def prepare(self, kind: str, sizes: Iterable[int], epoch: int | None = None) -> None:
        """Compile and bind what batches of these sizes run, and what copies them."""
        for size in sizes:
            if _streams_pixels(self._batches):
                pixels = self._batches.images
                self._runner(kind, size, np.empty((0, *self._batches.shape), pixels.dtype))
            else:  # only the first batch will show its dtype
                self._engine.prepare(kind, size)

    def train(self, epoch: int, start_batch: int, course: Course) -> Iterator[StepResults]:
        """One step after the other; their reports come some steps later."""
        rates = self._engine.hyper_rows(course.hyper)
        self._engine.begin_steps()
        return self._pace.reported(self._asked(epoch, start_batch, course, rates), _STEPS_AHEAD)

    def evaluate(self) -> Iterator[StepResults]:
        """Figures of each batch of epoch 0."""
        course = Course([{}] * len(self._batches), settled=lambda step: False)
        return self._pace.reported(self._asked(0, 0, course, None), _STEPS_AHEAD)

    def _asked(
        self, epoch: int, start_batch: int, course: Course, rates: np.ndarray | None
    ) -> Generator[Part, None, None]:
        if not course.hyper:
            return
        with finished(self._source(epoch, start_batch)) as batches:
            for step, batch in enumerate(batches):
                labels = np.asarray(batch.labels)
                if labels.ndim == 1:
                    asked = self._ask(batch.images, labels, None if rates is None else rates[step])
                else:
                    asked = self._plain(batch, None if rates is None else course.hyper[step])
                yield Part(asked, len(labels), course.settled(step))
                if course.stop():
                    return

    def _ask(self, images: np.ndarray, labels: np.ndarray, rates: np.ndarray | None) -> Asked:
        engine = self._engine
        engine.check_labels(labels)
        images = images if images.dtype == np.uint8 else images.astype(np.float32, copy=False)
        kind = "evaluate" if rates is None else "train"
        executable, runner = self._runner(kind, len(images), images)
        with engine.lock:
            asked = runner.ask(
                images, labels.astype(np.int64, copy=False), rates, engine.steps_done
            )
            engine.ran(executable, 0 if rates is None else 1)
        return asked

    def _plain(self, batch: Batch, hyper: Mapping[str, float] | None) -> Asked:
        """A batch whose truth is given as probabilities, which no ring is made for."""
        if hyper is None:
            result = self._engine.evaluate_step(batch.images, batch.labels)
        else:
            self._engine.set_hyper(**hyper)
            result = self._engine.train_step(batch.images, batch.labels)
        corrects = np.array([[result.correct, result.correct5]], np.int32)
        costs = np.array([[result.costs[name] for name in self._engine.figures]], np.float32)
        results = Results(np.array([result.loss], np.float32), corrects, costs)
        return Asked(1, lambda: results)

    def _source(self, epoch: int, start_batch: int) -> Iterator[Batch]:
        """Batches as small as they come: pixels, where the data set has them."""
        if _streams_pixels(self._batches):
            return self._batches.raw(epoch, start_batch)
        return self._batches.epoch(epoch, start_batch)

    def _runner(self, kind: str, size: int, images: np.ndarray) -> tuple[Executable, StreamRunner]:
        """What runs batches of ``size`` that are like ``images``."""
        key = kind, size
        if key not in self._runners:
            if self._ring is None:
                most = max(getattr(self._batches, "batch_size", 0), size)
                costs = len(self._engine.figures)
                self._ring = self._device.ring(self._like(images), most, costs)
            executable = self._engine.executable(*key)
            self._runners[key] = executable, self._device.streamed(executable, self._ring)
        return self._runners[key]

    def _like(self, images: np.ndarray) -> Samples:
        none = np.empty(0, np.float32)
        scale, shift = none, none
        if _streams_pixels(self._batches):
            scale, shift = self._batches.coefficients
        return Samples(images[:0], none, scale, shift)
