"""Training on a data set that lies in device memory: the host only says "go on".

The first kernel of each step gathers and normalises its batch, the last one files its loss; a plan
of one step may do both itself (fed.py). What differs between steps (samples, rates, number) lies in
tables on the device. So many steps make one graph, and the host reads results once a graph, while
the next ones run.

    data = ResidentData(gpu, images, labels, scale, shift)
    steps = ResidentSteps(executable, data)
    results = steps.train(order, rates, first_step=engine.steps_done)

A batch holds the same bits as on the host path (normalise.py, data/augment.py).
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from convloom.backends.cuda.fed import fed_calls, fed_phases
from convloom.backends.cuda.gpu import Allocation, Call, Gpu
from convloom.backends.cuda.graph import REPETITIONS, Replay
from convloom.backends.cuda.launch import Phase, Specialisation
from convloom.backends.cuda.overlap import Access, Span
from convloom.backends.cuda.tables import RANKS, Reports, checked_order, checked_rates
from convloom.backends.feeding import Asked, Crops, Results
from convloom.ir import ROW_MAJOR, ConvloomError, Plan, ShapeError, TensorSpec

#: Graphs that are asked for before the results of the first of them are awaited.
_AHEAD = 3
_THREADS = 256
_CLOCK_BYTES = 16


class Stepper(Protocol):
    """What is needed of an executable: launches that repeat its plan, and where tensors lie."""

    @property
    def plan(self) -> Plan: ...

    @property
    def prologue(self) -> Sequence[Callable[[], None]]:
        """Launches that come before the first of runs that follow each other directly."""
        ...

    @property
    def calls(self) -> Sequence[Callable[[], None]]:
        """The launches of each run, in order; each is a function that asks for one."""
        ...

    def address(self, name: str) -> int:
        """Where a tensor lies on the device; 0 for one that this plan does not have."""
        ...

    def place(self, buffer: str) -> int:
        """The address of a tensor or workspace of the plan."""
        ...

    def warm_up(self) -> None:
        """One run, step by step, so that whatever is wrong shows with its name."""
        ...


class ResidentData:
    """A data set in device memory, shared by the executables of all batch sizes.

    Args:
        images: (samples, C, H, W) uint8, or float32 that is taken as it is.
        labels: (samples,) integers; their range is the caller's to check.
        scale, shift: float32, one each channel, as ``normalise.coefficients`` gives them; the shift
            may also have one for every pixel of the network's input, (C, H, W); empty for float32
            images.

    Raises:
        ShapeError: arrays that do not fit together.
        OutOfMemoryError: the images do not fit.
    """

    def __init__(
        self,
        gpu: Gpu,
        images: np.ndarray,
        labels: np.ndarray,
        scale: np.ndarray,
        shift: np.ndarray,
    ) -> None:
        check_images(images, scale, shift)
        samples, channels, height, width = images.shape
        if labels.shape != (samples,):
            raise ShapeError(f"{samples} images came with labels of shape {labels.shape}")
        if samples >= 2**32:
            raise ShapeError(f"a data set of {samples} images is too large; at most 2^32 - 1 fit")
        self.gpu = gpu
        self.samples = samples
        self.shape = (channels, height, width)
        self.floats = images.dtype == np.float32
        self.mapped = mapped(shift)
        self._images = uploaded(gpu, images)
        self._labels = uploaded(gpu, labels.astype(np.int64, copy=False))
        self._scale = uploaded(gpu, scale.astype(np.float32, copy=False))
        self._shift = uploaded(gpu, shift.astype(np.float32, copy=False))

    def on(self, gpu: Gpu) -> ResidentData:
        """The same memory for work on another stream of the same device."""
        other = copy.copy(self)
        other.gpu = gpu
        return other

    @property
    def nbytes(self) -> int:
        """Device memory that the data set takes."""
        parts = (self._images, self._labels, self._scale, self._shift)
        return sum(part.nbytes for part in parts)

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Of images, labels, scales and shifts."""
        return (
            self._images.address,
            self._labels.address,
            self._scale.address,
            self._shift.address,
        )


class ResidentSteps:
    """Runs an executable's plan over batches of a resident data set.

    The plan is one of a training or an evaluation step for class-number targets.

    Args:
        crops: how images are augmented, or None; ``train`` then takes the draws, and with noise
            the shifts.

    Raises:
        ShapeError: the plan's images are not the data set's.
    """

    def __init__(self, executable: Stepper, data: ResidentData, crops: Crops | None = None) -> None:
        self.executable = executable
        self.data = data
        self.crops = crops
        shape = data.shape if crops is None else crops.shape(data.shape)
        self.batch_size = checked_plan(executable.plan, shape, data.mapped)
        self.costs = costs_of(executable.plan)
        self._gpu = data.gpu
        hyper = executable.plan.graph.specs.get("hyper")
        self._rates = hyper.size if hyper else 0
        self._gather, self._record = kernels(
            data.shape,
            self._rates,
            crops,
            data.floats,
            data.mapped is not None,
            self.costs,
        )
        fed = [phase.kernel for phase in self._fed_phases()]
        self._gpu.load(fed or (self._gather, self._record))
        self._clock = self._gpu.allocate(2 * _CLOCK_BYTES)
        self._draws = self._gpu.allocate(draw_bytes(data, crops))
        noisy = crops is not None and crops.noise
        self._shifts = self._gpu.allocate(4 * data.samples * data.shape[0]) if noisy else None
        self._drawn: np.ndarray | None = None
        self._shifted: np.ndarray | None = None
        self._tables: _Tables | None = None
        self._replay: Replay | None = None
        self._warm = False
        self._steps = self._asked = self._first_step = 0

    @property
    def left(self) -> int:
        """Steps begun with ``begin`` that have not been asked for."""
        return self._steps - self._asked

    def train(
        self,
        order: np.ndarray,
        rates: np.ndarray | None,
        *,
        first_step: int = 0,
        draws: np.ndarray | None = None,
        shifts: np.ndarray | None = None,
    ) -> Results:
        """Run one step for each row of ``order``; see ``begin``."""
        parts = list(self.chunks(order, rates, first_step=first_step, draws=draws, shifts=shifts))
        return Results(
            np.concatenate([np.empty(0, np.float32), *(part.losses for part in parts)]),
            np.concatenate([np.empty((0, RANKS), np.int32), *(part.corrects for part in parts)]),
            np.concatenate([np.empty((0, self.costs), np.float32), *(p.costs for p in parts)]),
        )

    def chunks(
        self,
        order: np.ndarray,
        rates: np.ndarray | None,
        *,
        first_step: int = 0,
        draws: np.ndarray | None = None,
        shifts: np.ndarray | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Results]:
        """Run one step for each row of ``order``, and report some steps at a time, in order.

        Steps are asked for before those before them are reported. Whoever wants to end early says
        so through ``stop`` and takes the reports that still come: as many steps as were reported
        have run then. For the other arguments and for errors see ``begin``.
        """
        self.begin(order, rates, first_step=first_step, draws=draws, shifts=shifts)
        waiting: deque[Asked] = deque()
        while self.left and not stop():
            waiting.append(self.ask())
            if len(waiting) > _AHEAD:
                yield waiting.popleft().results()
        while waiting:
            yield waiting.popleft().results()

    def prepare(self, steps: int, runs: Iterable[int] = ()) -> None:
        """Make tables and graphs for this many steps, of which ``runs`` come at a time."""
        self._prepared(steps)
        assert self._replay is not None
        # The host may ask for any number of steps at a time, and does until it knows how long one
        # takes.
        self._replay.prepare(max((*runs,) or (steps,)))

    def begin(
        self,
        order: np.ndarray,
        rates: np.ndarray | None,
        *,
        first_step: int = 0,
        draws: np.ndarray | None = None,
        shifts: np.ndarray | None = None,
    ) -> None:
        """Say what the next steps are, one for each row of ``order``.

        All steps begun before must have been reported.

        Args:
            order: (steps, batch size) indices of samples.
            rates: (steps, values) float64, the hyper values of each step; None for a plan that
                updates nothing.
            first_step: number of the first step, as ``counter`` has it; the seed in ``counter``
                stays what it is.
            draws: (samples, 3) uint8, or uint16 where crops begin beyond 255, row, column and flip
                of every sample, if there are crops; an array that was given before is taken to be
                unchanged.
            shifts: (samples, C) float32, the shift of every sample's normalisation, if there is
                noise; likewise.

        Raises:
            ShapeError: tables of other shapes.
            ConvloomError: indices, or draws, out of range.
        """
        order = checked_order(order, self.batch_size, self.data.samples)
        self._steps, self._asked = len(order), 0
        if not len(order):
            return
        width = self._rates if self.executable.address("hyper") else 0
        rates = checked_rates(rates, len(order), width)
        if draws is None or draws is not self._drawn:
            self._take_draws(draws)
        if shifts is None or shifts is not self._shifted:
            self._take_shifts(shifts)
        self._prepared(len(order)).fill(order, rates)
        self._set_clock(first_step)

    def ask(self, most: int = REPETITIONS, step: int | None = None) -> Asked:
        """Ask for up to ``most`` of the steps left, as many as one graph holds.

        The first step of all runs alone, launch by launch.

        Args:
            step: number of the first of them, where steps of other plans came in between.

        Raises:
            DeviceError: a kernel failed; names the first step's, any later one not.
        """
        assert self._replay is not None and self._tables is not None
        assert self.left > 0
        if step is not None and step != self._first_step + self._asked:
            self._set_clock(step - self._asked)
        if self._warm:
            length = next(self._replay.lengths(min(most, self.left)))
            self._replay.launch(length)
        else:
            length = 1
            self._first(self._tables)
        results = self._tables.reports.results(self._asked, length)
        self._asked += length
        return Asked(length, results)

    def _set_clock(self, first_step: int) -> None:
        """Say which row comes next, and what number the step of row 0 has, or would have."""
        self._first_step = first_step
        self._gpu.upload(self._clock.address, np.array([self._asked, first_step], np.uint64))

    def _first(self, tables: _Tables) -> None:
        """One step, launch by launch, so that whatever is wrong shows with its name."""
        if fed := self._fed(tables):
            for call in (*self.executable.prologue, *fed):
                call()
            self._gpu.synchronize()
        else:
            before, after = self._ends(tables)
            before()
            self.executable.warm_up()
            after()
        self._warm = True

    def _prepared(self, steps: int) -> _Tables:
        """Tables that are long enough; graphs made for shorter ones are dropped."""
        if self._tables is None or self._tables.capacity < steps:
            self._tables = tables = _Tables(
                self._gpu, steps, self.batch_size, self._rates, self.costs
            )
            calls = self._fed(tables)
            if not calls:
                before, after = self._ends(tables)
                calls = (before, *self.executable.calls, after)
            chained = any(phase.kernel.chained for phase in self._fed_phases())
            later = partial(self._fed, tables) if chained else None
            self._replay = Replay(self._gpu, calls, self.executable.prologue, later)
        return self._tables

    def _fed(self, tables: _Tables, place: int = 0) -> tuple[Callable[[], None], ...]:
        """The launches of a step that gathers and records itself; none where it cannot.

        Args:
            place: steps that come before it in its graph.
        """
        if not self._fed_phases():
            return ()
        images, labels, scale, shift = self.data.addresses
        addresses = {
            "images": images,
            "labels": labels,
            "scale": scale,
            "shift": shift,
            "order": tables.order,
            "draws": self._draws.address,
            "rates": tables.rates if self.executable.address("hyper") else 0,
            "clock": self._clock.address,
            "losses": tables.reports.tables[0],
            "corrects": tables.reports.tables[1],
            "place": place,
        }
        calls = fed_calls(self.executable, self._gather, addresses)
        return tuple(self._gpu.prepare(call) for call in calls)

    def _fed_phases(self) -> tuple[Phase, ...]:
        """What of such a step there is: for whole images and one shift a channel."""
        if windows(self.data.shape, self.crops) or self.data.mapped is not None:
            return ()
        return fed_phases(self.executable.plan, self._gather)

    def _ends(self, tables: _Tables) -> tuple[Callable[[], None], Callable[[], None]]:
        """The launches before and after those of the plan."""
        moved = 0 if self._shifts is None else self._shifts.address
        own = (moved,) if windows(self.data.shape, self.crops) else ()
        facts = (*self.data.addresses, *own)
        source = (*facts, tables.order, self._draws.address, tables.rates)
        clock = self._clock.address
        gather = gathering(self._gather, self.executable, source, clock)
        record = recording(self._record, self.executable, tables.reports.tables, clock)
        return self._gpu.prepare(gather), self._gpu.prepare(record)

    def _take_draws(self, draws: np.ndarray | None) -> None:
        checked = checked_draws(draws, self.data, self.crops)
        if checked is not None:
            self._gpu.upload(self._draws.address, checked)
            self._drawn = draws

    def _take_shifts(self, shifts: np.ndarray | None) -> None:
        if self._shifts is None:
            if shifts is not None:
                raise ShapeError("shifts were given, but no colours are moved")
            return
        shape = (self.data.samples, self.data.shape[0])
        if shifts is None or shifts.shape != shape or shifts.dtype != np.float32:
            raise ShapeError(f"the shifts of samples must be float32 {shape}")
        self._gpu.upload(self._shifts.address, np.ascontiguousarray(shifts))
        self._shifted = shifts


class _Tables:
    """What the steps of one call read and write, in device memory, and its twin on the host."""

    def __init__(self, gpu: Gpu, steps: int, batch_size: int, width: int, costs: int) -> None:
        self.capacity = steps
        self._gpu = gpu
        self._memory = [gpu.allocate(size) for size in (8 * steps * batch_size, 8 * steps * width)]
        self.order, self.rates = (memory.address for memory in self._memory)
        self.reports = Reports(gpu, steps, costs)

    def fill(self, order: np.ndarray, rates: np.ndarray | None) -> None:
        """Write the tables for as many steps as ``order`` has rows."""
        self._gpu.upload(self.order, order)
        if rates is not None:
            self._gpu.upload(self.rates, rates)


def checked_draws(
    draws: np.ndarray | None, data: ResidentData, crops: Crops | None
) -> np.ndarray | None:
    """The draws of crops, as they lie on the device; None without. Raises ShapeError, or
    ConvloomError for a crop that the padded image does not hold."""
    if crops is None:
        if draws is not None:
            raise ShapeError("draws were given, but the images are not augmented")
        return None
    shape, kind = (data.samples, 3), _draw_type(data, crops)
    if draws is None or draws.shape != shape or draws.dtype not in (np.uint8, kind):
        raise ShapeError(f"the draws of crops must be {kind} {shape}")
    spare = np.subtract(data.shape[1:], crops.shape(data.shape)[1:])
    if draws.size and (draws[:, :2].max(axis=0) > spare + 2 * crops.padding).any():
        raise ConvloomError(f"a crop begins beyond the padding of {crops.padding}")
    return np.ascontiguousarray(draws, kind)


def draw_bytes(data: ResidentData, crops: Crops | None) -> int:
    """Bytes that the draws of crops take on the device."""
    return 0 if crops is None else 3 * data.samples * _draw_type(data, crops).itemsize


def _draw_type(data: ResidentData, crops: Crops) -> np.dtype[Any]:
    return np.dtype(np.uint16 if windows(data.shape, crops) else np.uint8)


def uploaded(gpu: Gpu, values: np.ndarray) -> Allocation:
    """Device memory that holds a copy of an array."""
    values = np.ascontiguousarray(values)
    memory = gpu.allocate(values.nbytes)
    if values.nbytes:
        gpu.upload(memory.address, values)
    return memory


def kernels(
    shape: tuple[int, int, int],
    rates: int,
    crops: Crops | None,
    floats: bool = False,
    mapped: bool = False,
    costs: int = 0,
) -> tuple[Specialisation, Specialisation]:
    """What begins and ends a step whose batch lies on the device.

    Args:
        shape: (C, H, W) of an image of the data set.
        rates: length of ``hyper``; 0 for a plan that has none.
        floats: the images are float32 and are taken as they are.
        mapped: every pixel of the input has a shift of its own.
        costs: numbers in the plan's ``costs``.
    """
    record = Specialisation("record/naive", (("COSTS", costs), ("RANKS", RANKS)))
    if crops is not None and windows(shape, crops):
        return _window_kernel(shape, rates, crops, floats, mapped), record
    channels, height, width = shape
    constants = {
        "AUGMENT": int(crops is not None),
        "C": channels,
        "FLOATS": int(floats),
        "H": height,
        "MAPPED": int(mapped),
        "PADDING": crops.padding if crops else 0,
        "RATES": rates,
        "REFLECT": int(crops is not None and crops.reflect),
        "W": width,
    }
    return Specialisation("gather/naive", tuple(sorted(constants.items()))), record


def windows(shape: tuple[int, int, int], crops: Crops | None) -> bool:
    """Whether crops are of another size than images of ``shape``, or colours are moved."""
    return crops is not None and (crops.noise or crops.shape(shape) != shape)


def gathers_itself(shape: tuple[int, ...], shift: np.ndarray, crops: Crops | None) -> bool:
    """Whether a step can gather its batches itself (fed.py): whole images, a shift a channel."""
    channels, height, width = shape
    return not windows((channels, height, width), crops) and mapped(shift) is None


def _window_kernel(
    shape: tuple[int, int, int], rates: int, crops: Crops, floats: bool, mapped: bool
) -> Specialisation:
    channels, height, width = crops.shape(shape)
    constants = {
        "C": channels,
        "FLOATS": int(floats),
        "H": height,
        "IMAGE_H": shape[1],
        "IMAGE_W": shape[2],
        "MAPPED": int(mapped),
        "NOISE": int(crops.noise),
        "PADDING": crops.padding,
        "RATES": rates,
        "REFLECT": int(crops.reflect),
        "W": width,
    }
    return Specialisation("gather/windows", tuple(sorted(constants.items())))


def gathering(
    kernel: Specialisation, executable: Stepper, source: tuple[int, ...], clock: int
) -> Call:
    """The launch that makes the plan's inputs.

    Args:
        source: addresses of images, labels, scales, shifts, (for windows) shifts of samples, order,
            draws and rates.
    """
    n, channels, height, width = executable.plan.spec("input").shape
    size = n * channels * height * width
    hyper, counter = executable.address("hyper"), executable.address("counter")
    *data, rates = source
    made = (executable.address("input"), executable.address("target"), hyper, counter)
    # Of what it reads, only the clock is ever written by another launch.
    access = Access(
        (_clock_span(clock),), _spans(executable, "input", "target", "hyper", "counter")
    )
    return Call(
        kernel,
        (*data, rates if hyper else 0, clock, *made, size),
        blocks=-(-size // _THREADS),
        threads=_THREADS,
        shared=0,
        title=f"gather on {n}×{channels}×{height}×{width}",
        access=access,
    )


def recording(
    kernel: Specialisation, executable: Stepper, reports: Sequence[int], clock: int
) -> Call:
    """The launch that keeps what the plan reports.

    Args:
        reports: addresses of the tables of losses, right answers and costs.
    """
    names = ("loss", "correct", "costs")
    words = (*(executable.address(name) for name in names), *reports, clock)
    # Only this launch uses the tables; the clock keeps those of different steps in order.
    access = Access(_spans(executable, *names), (_clock_span(clock),))
    return Call(kernel, words, blocks=1, threads=32, shared=0, title="record", access=access)


def _spans(executable: Stepper, *names: str) -> tuple[Span, ...]:
    """Where those of the tensors lie that the plan has."""
    found = ((executable.address(name), name) for name in names)
    return tuple((at, at + executable.plan.spec(name).nbytes) for at, name in found if at)


def _clock_span(clock: int) -> Span:
    return clock, clock + _CLOCK_BYTES


def check_images(images: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> None:
    """Raises ShapeError for images of another type, or without their coefficients."""
    if images.dtype not in (np.uint8, np.float32) or images.ndim != 4:
        raise ShapeError(
            "images must be (samples, C, H, W), uint8 or float32, they are "
            f"{images.dtype} {images.shape}"
        )
    wanted = images.shape[1] if images.dtype == np.uint8 else 0
    fits = (mapped(shift) is not None and len(shift) == wanted) or shift.size == wanted
    if scale.size != wanted or not fits:
        raise ShapeError(
            f"{images.dtype} images of {images.shape[1]} channels came with {scale.size} scales "
            f"and shifts of shape {shift.shape}"
        )


def mapped(shift: np.ndarray) -> tuple[int, ...] | None:
    """(C, H, W) of shifts that every pixel has one of; None where channels have."""
    return shift.shape if shift.ndim == 3 and shift.shape[1:] != (1, 1) else None


def costs_of(plan: Plan) -> int:
    """How many numbers a plan reports beside its loss."""
    return plan.spec("costs").size if "costs" in plan.graph.specs else 0


def checked_plan(
    plan: Plan, shape: tuple[int, int, int], mapped: tuple[int, ...] | None = None
) -> int:
    """The plan's batch size.

    Raises:
        ShapeError: it does not take images of this shape, or there are shifts for another one.
    """
    if mapped not in (None, shape):
        raise ShapeError(f"shifts of pixels have shape {mapped}, the network's input {shape}")
    specs = plan.graph.specs
    wanted = {"input", "target", "loss", "correct"}
    if not wanted <= specs.keys():
        missing = ", ".join(sorted(wanted - specs.keys()))
        raise ShapeError(f"the plan is no training or evaluation step, it has no {missing}")
    images, target = specs["input"], specs["target"]
    n = images.shape[0]
    if images != TensorSpec((n, *shape), "float32", ROW_MAJOR):
        raise ShapeError(f"the plan takes images {images}, the data set has {shape}")
    if target != TensorSpec((n,), "int64"):
        raise ShapeError(f"the plan takes targets {target}, a data set has class numbers")
    if (specs["correct"].dtype, specs["correct"].shape) != ("int32", (RANKS,)):
        raise ShapeError(f"the plan counts right answers as {specs['correct']}")
    return n
