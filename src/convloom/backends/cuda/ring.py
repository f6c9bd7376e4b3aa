"""Batches on their way to the device while the steps before them run.

Three places take turns. Each has pinned host memory, a twin on the device, and two marks: the host
writes to the pinned memory when the copy before is done, and the copy begins when the step that
reads the twin is done. The step begins when the copy is done; the host waits for neither, and reads
the step's loss some steps later.

A place holds pixels, labels, the step's hyper values and its number, so one copy brings all of it,
and the kernels are those of resident data (resident.py): a batch is a small data set in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from convloom.backends.cuda.gpu import Gpu, Mark
from convloom.backends.cuda.graph import Replay
from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cuda.resident import (
    Stepper,
    check_images,
    checked_plan,
    costs_of,
    gathering,
    kernels,
    mapped,
    recording,
    uploaded,
)
from convloom.backends.feeding import Asked, Results, Samples
from convloom.ir import ShapeError
from convloom.ops.control import HYPER

SLOTS = 3
#: Steps whose results may be on their way at a time; one more waits for the oldest.
REPORTS = 16
#: What one step reports, but for its costs: a float32 loss, then two int32 counts.
_REPORT_BYTES = 12
_ALIGNMENT = 256
_CLOCK_BYTES = 16


class Ring:
    """The places, shared by the steps of all batch sizes.

    Args:
        like: type and shape of the images, and how they are normalised.
        batch_size: the most images of a batch.
        rates: length of ``hyper`` of the plans that are to run.
        costs: numbers in their ``costs``.

    Raises:
        ShapeError: images of another type.
        OutOfMemoryError: the places do not fit.
    """

    def __init__(
        self,
        gpu: Gpu,
        like: Samples,
        batch_size: int,
        slots: int = SLOTS,
        rates: int = len(HYPER),
        costs: int = 0,
    ) -> None:
        check_images(like.images, like.scale, like.shift)
        _, channels, height, width = like.images.shape
        self.gpu = gpu
        self.shape = (channels, height, width)
        self.dtype = like.images.dtype
        self.mapped = mapped(like.shift)
        self.batch_size = batch_size
        self.rates = rates
        self.costs = costs
        report_bytes = _REPORT_BYTES + 4 * costs
        self._constants = [uploaded(gpu, v.astype(np.float32)) for v in (like.scale, like.shift)]
        self._order = uploaded(gpu, np.arange(batch_size))
        image_bytes = channels * height * width * self.dtype.itemsize
        self.slots = [Slot(gpu, batch_size, image_bytes, rates, report_bytes) for _ in range(slots)]
        self._next = 0
        self._reports = [_Report(gpu, report_bytes) for _ in range(REPORTS)]
        self._next_report = 0

    def source(self, slot: Slot) -> tuple[int, ...]:
        """What the gather kernel reads: images, labels, scale, shift, order, draws, rates."""
        scale, shift = (memory.address for memory in self._constants)
        return (slot.images, slot.labels, scale, shift, self._order.address, 0, slot.rates)

    def turn(self) -> int:
        """The number of the place whose turn it is."""
        turn, self._next = self._next, (self._next + 1) % len(self.slots)
        return turn

    def report(self, slot: Slot) -> Callable[[], Results]:
        """A function that waits for what the step asked for last in ``slot`` reports."""
        report = self._reports[self._next_report]
        self._next_report = (self._next_report + 1) % REPORTS
        return report.fetch(slot)


class Slot:
    """One place. Its memory holds, each from an aligned beginning on: clock, rates, labels, images.

    The clock, as resident.py has it, says row 0 of the tables and the step's number; images come
    last, so that a short batch is a short copy.
    """

    def __init__(
        self, gpu: Gpu, batch_size: int, image_bytes: int, rates: int, report_bytes: int
    ) -> None:
        self._gpu = gpu
        sizes = (_CLOCK_BYTES, 8 * rates, 8 * batch_size, image_bytes * batch_size)
        starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)])
        self._starts = [int(start) for start in starts]
        self._pinned = gpu.pinned(self._starts[-1])
        self._twin = gpu.allocate(self._starts[-1])
        self._reported = gpu.allocate(report_bytes)
        address = self._twin.address
        self.clock, self.rates, self.labels, self.images = (address + s for s in self._starts[:4])
        start = self._reported.address
        costs = start + _REPORT_BYTES if report_bytes > _REPORT_BYTES else 0
        self.reports = (start, start + 4, costs)
        # The device zeroes new memory in its own time: that too comes before the first copy.
        self._used: Mark = gpu.mark()
        self._copied: Mark = self._used

    def send(
        self, images: np.ndarray, labels: np.ndarray, rates: np.ndarray | None, step: int
    ) -> None:
        """Bring a batch to the twin, and have what is asked next wait for it."""
        self._copied()
        self._write(0, np.array([0, step], np.uint64))
        if rates is not None:
            self._write(1, rates)
        self._write(2, labels)
        end = self._write(3, images)
        self._copied = self._gpu.upload_aside(
            self._twin.address, self._pinned.array[:end], after=self._used
        )
        self._gpu.follow(self._copied)

    def used(self) -> Mark:
        """Say that the steps asked for so far are those that read the twin."""
        self._used = self._gpu.mark()
        return self._used

    def _write(self, part: int, values: np.ndarray) -> int:
        start = self._starts[part]
        end = start + values.nbytes
        self._pinned.array[start:end].view(values.dtype).reshape(values.shape)[...] = values
        return end


class _Report:
    """Pinned memory for what one step reports, and the report that it holds."""

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self._gpu = gpu
        self._pinned = gpu.pinned(nbytes)
        self._nbytes = nbytes
        self._results: Callable[[], Results] = lambda: Results(*3 * (np.empty(0),))

    def fetch(self, slot: Slot) -> Callable[[], Results]:
        self._results()  # whoever has not taken the last report still can
        bytes_ = self._pinned.array[: self._nbytes]
        self._gpu.download_later(slot.reports[0], bytes_)
        wait = slot.used()

        @cache
        def results() -> Results:
            wait()
            words = bytes_.copy()
            loss, correct = words[:4].view(np.float32), words[4:_REPORT_BYTES].view(np.int32)
            costs = words[_REPORT_BYTES:].view(np.float32)
            return Results(loss, correct.reshape(1, 2), costs.reshape(1, -1))

        self._results = results
        return results


class StreamedSteps:
    """Runs an executable's plan over batches that pass through a ring.

    The plan is one of a training or an evaluation step for class-number targets.

    Raises:
        ShapeError: the plan's images are not the ring's.
    """

    def __init__(self, executable: Stepper, ring: Ring) -> None:
        self.executable = executable
        self.ring = ring
        self.batch_size = checked_plan(executable.plan, ring.shape, ring.mapped)
        if self.batch_size > ring.batch_size:
            raise ShapeError(
                f"the ring is for batches of up to {ring.batch_size} images, the plan takes "
                f"{self.batch_size}"
            )
        self._updates = bool(executable.address("hyper"))
        costs = costs_of(executable.plan)
        if costs > ring.costs:
            raise ShapeError(f"the ring is for {ring.costs} costs, the plan reports {costs}")
        gather, record = kernels(
            ring.shape,
            ring.rates if self._updates else 0,
            None,
            floats=ring.dtype == np.float32,
            mapped=ring.mapped is not None,
            costs=costs,
        )
        ring.gpu.load((gather, record))
        self._ends = [self._prepared(slot, gather, record) for slot in ring.slots]
        self._replays = [self._replay(*ends) for ends in self._ends]
        self._warm = False

    def ask(
        self, images: np.ndarray, labels: np.ndarray, rates: np.ndarray | None, step: int
    ) -> Asked:
        """Ask for one step; the arrays may change as soon as this returns.

        Args:
            images: (batch size, C, H, W) of the ring's type.
            labels: (batch size,) int64; their range is the caller's to check.
            rates: (values,) float64; None for a plan that updates nothing.
            step: its number, as ``counter`` has it; the seed there stays what it is.

        Raises:
            ShapeError: arrays of another shape.
            DeviceError: a kernel failed; names the first step's, any later one not.
        """
        self._check(images, labels, rates)
        turn = self.ring.turn()
        slot = self.ring.slots[turn]
        slot.send(images, labels, rates, step)
        if self._warm:
            self._replays[turn].launch(1)
        else:
            self._first(*self._ends[turn])
        return Asked(1, self.ring.report(slot))

    def _first(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """One step, launch by launch, so that whatever is wrong shows with its name."""
        before()
        self.executable.warm_up()
        after()
        self._warm = True

    def _prepared(
        self, slot: Slot, gather: Specialisation, record: Specialisation
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        calls = (
            gathering(gather, self.executable, self.ring.source(slot), slot.clock),
            recording(record, self.executable, slot.reports, slot.clock),
        )
        before, after = (self.ring.gpu.prepare(call) for call in calls)
        return before, after

    def _replay(self, before: Callable[[], None], after: Callable[[], None]) -> Replay:
        calls = (before, *self.executable.calls, after)
        return Replay(self.ring.gpu, calls, self.executable.prologue)

    def _check(self, images: np.ndarray, labels: np.ndarray, rates: np.ndarray | None) -> None:
        if images.shape != (self.batch_size, *self.ring.shape) or images.dtype != self.ring.dtype:
            raise ShapeError(
                f"a batch must be {self.ring.dtype} {(self.batch_size, *self.ring.shape)}, it is "
                f"{images.dtype} {images.shape}"
            )
        if labels.shape != (self.batch_size,) or labels.dtype != np.int64:
            raise ShapeError(
                f"labels must be int64 ({self.batch_size},), they are {labels.dtype} {labels.shape}"
            )
        if self._updates and (rates is None or rates.shape != (self.ring.rates,)):
            shape = None if rates is None else rates.shape
            raise ShapeError(f"rates must be ({self.ring.rates},), they are {shape}")
