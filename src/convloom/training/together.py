"""Networks of one kind that train together: on a GPU, two launches a step for all.

They differ in weights, rates, seed and order, which their kernels read from memory; data, batch
size and schedule of work are the same, so all stand at the same step. ``Together`` does for them
what ``Loop`` does for one, with the bits that each has alone. One whose loss is not finite leaves
off, and the others go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice

import numpy as np

from convloom.backends.feeding import (
    Crops,
    DeviceInput,
    Job,
    MemberRunner,
    Members,
    Results,
    Samples,
)
from convloom.ir import Plan
from convloom.ir.printing import quantity
from convloom.training.engine import Engine, Plans
from convloom.training.feeding import (
    STREAM,
    batch_sizes,
    blocks,
    places_of,
)
from convloom.training.history import History, StepRow
from convloom.training.interrupt import StopRequest, TrainingInterrupted
from convloom.training.loop import (
    NonFiniteError,
    Rates,
    batches_of,
    epoch_row,
    non_finite,
)
from convloom.training.metrics import Evaluation, Totals
from convloom.training.pace import Pace, Part
from convloom.training.protocols import Batches, Dataset, DeviceBatches, Progress
from convloom.training.trainer import Trainer

_LOG = logging.getLogger("convloom")
#: Share of the device's free memory that data and networks may take.
_SHARE = 0.8
#: Graphs whose reports are awaited at a time.
_AHEAD = 4

#: Makes the trainer of a network; keyword arguments are the engine's.
MakeTrainer = Callable[..., Trainer]


class ApartError(Exception):
    """Why networks cannot train together, in a clause."""


@dataclass(frozen=True)
class Way:
    """How networks of one kind train together.

    Attributes:
        jobs: {(``train`` or ``evaluate``, batch size): what is done}.
        nbytes: of the device's memory, for each network.
        most: networks that fit there at a time.
    """

    plans: Plans
    device: DeviceInput
    jobs: Mapping[tuple[str, int], Job]
    nbytes: int
    most: int

    def groups(self, count: int) -> list[int]:
        """How many of ``count`` networks train at a time, groups as equal as can be."""
        rounds = -(-count // self.most)
        return [count * (i + 1) // rounds - count * i // rounds for i in range(rounds)]

    def describe(self, count: int) -> str:
        """How so many networks train, in a line."""
        groups = self.groups(count)
        each = f"{quantity(self.nbytes)}B of memory each"
        if len(groups) == 1:
            return f"{count} members train together, two launches a step for all; {each}"
        return (
            f"{count} members train {max(groups)} at a time, two launches a step for all of those; "
            f"{each}, and more would not fit"
        )


def way_for(make: MakeTrainer, train: Dataset, validation: Dataset | None) -> Way:
    """How networks like the one that ``make`` trains can train together. Compiles nothing.

    Raises:
        ApartError: they cannot; says why.
        TrainerError: data that cannot be trained on.
    """
    plans = Plans()
    trainer = make(engine=partial(Engine, plans=plans))
    trainer.begin(train, validation)
    engine = _compiled(trainer)
    device = engine.device_input()
    if device is None:
        raise ApartError(f"device {engine.device} runs batches from the host's memory")
    if trainer.input == STREAM:
        raise ApartError("input 'stream' gives each its own batches")
    work = [_Work("train", batches_of(trainer, train), engine, device)]
    if validation is not None:
        work.append(_Work("evaluate", validation.batches(trainer.batch_size), engine, device))
    jobs: dict[tuple[str, int], Job] = {}
    for one in work:
        jobs |= one.jobs()
    nbytes = device.member_bytes([*jobs.values()])
    most = int(_SHARE * device.free_bytes()) // nbytes
    if most < 2:
        raise ApartError(f"each takes {quantity(nbytes)}B of memory, which is short")
    return Way(plans, device, jobs, nbytes, most)


def _compiled(trainer: Trainer) -> Engine:
    engine = trainer.engine
    assert isinstance(engine, Engine)
    return engine


class _Work:
    """What is done with a data set. Raises ApartError where networks cannot do it together."""

    def __init__(self, kind: str, batches: Batches, engine: Engine, device: DeviceInput) -> None:
        if not isinstance(batches, DeviceBatches):
            raise ApartError("a data set gives its batches one by one")
        self._kind, self._batches, self._device = kind, batches, device
        crops = None if kind == "evaluate" else batches.crops
        self._crops = None if crops is None else Crops(*crops)
        self._samples = Samples(batches.images, batches.labels, *batches.coefficients)
        self._plans: dict[int, Plan] = {}
        for size in batch_sizes(batches, len(batches.labels), batches.batch_size):
            self._plans[size] = plan = engine.plan_of(kind, size)
            if reason := device.refusal(plan, self._samples, self._crops):
                raise ApartError(reason)
        engine.check_labels(batches.labels)

    def jobs(self) -> dict[tuple[str, int], Job]:
        """A job for each batch size, on data that lies on the device from now on."""
        need, free = self._samples.images.nbytes, self._device.free_bytes()
        if need > _SHARE * free:
            raise ApartError(
                f"the data takes {quantity(need)}B of memory, and {quantity(free)}B are free"
            )
        data, sizes = self._device.upload(self._samples), [*self._batches.sizes]
        return {
            (self._kind, size): Job(plan, data, self._crops, sizes.count(size))
            for size, plan in self._plans.items()
        }


@dataclass(frozen=True)
class Outcome:
    """What became of a network: its history, and the error that ended its training early."""

    history: History
    error: NonFiniteError | None = None


def train_together(
    way: Way,
    makers: Sequence[MakeTrainer],
    train: Dataset,
    validation: Dataset | None,
    epochs: int,
) -> list[Outcome]:
    """Train as many networks as fit at a time, each for some epochs.

    Raises:
        OutOfMemoryError: they do not fit after all.
        TrainingInterrupted: Ctrl-C.
    """
    memory = way.device.members([*way.jobs.values()], len(makers))
    trainers = []
    for member, make in enumerate(makers):
        engine = partial(Engine, plans=way.plans, storage=partial(memory.storage, member))
        trainers.append(make(engine=engine))
        trainers[-1].begin(train, validation)
    return Together(trainers, way, memory, train, validation).run(epochs)


@dataclass(frozen=True)
class _Epoch:
    """What a network is told of an epoch."""

    order: np.ndarray
    draws: np.ndarray | None
    lrs: Sequence[float]
    rates: np.ndarray


class _Sums:
    """``Totals`` of many networks."""

    def __init__(self, count: int) -> None:
        self._loss = np.zeros(count)
        self._corrects = np.zeros((count, 2), np.int64)
        self._n = 0

    def add(self, losses: np.ndarray, corrects: np.ndarray, n: int) -> None:
        """Count a batch of ``n`` samples."""
        self._loss += losses.astype(np.float64) * n
        self._corrects += corrects
        self._n += n

    def means(self, member: int) -> Evaluation:
        """A network's sums divided by the number of samples."""
        first, five = self._corrects[member].tolist()
        return Totals(float(self._loss[member]), first, five, self._n).means()


class _Ahead:
    """What networks are told of an epoch, made bit by bit while the epoch before it runs."""

    def __init__(self, made: Iterator[_Epoch], steps: int, count: int) -> None:
        self._made = made
        self._each = count / max(1, steps)
        self._due = 0.0
        self._told: list[_Epoch] = []

    def advance(self, steps: int) -> None:
        """So many steps are done: make as much, so that all is made when the epoch ends."""
        self._due += steps * self._each
        self._told += islice(self._made, max(0, int(self._due) - len(self._told)))

    def all(self) -> list[_Epoch]:
        """Everything."""
        return [*self._told, *self._made]


class Together:
    """Trains networks whose engines are on ``memory``."""

    def __init__(
        self,
        trainers: Sequence[Trainer],
        way: Way,
        memory: Members,
        train: Dataset,
        validation: Dataset | None,
    ) -> None:
        self._trainers = tuple(trainers)
        self._engines = [_compiled(trainer) for trainer in trainers]
        self._runners = {key: memory.runner(number) for number, key in enumerate(way.jobs)}
        self._batches = [batches_of(trainer, train) for trainer in trainers]
        first = trainers[0]
        self._validation = None if validation is None else validation.batches(first.batch_size)
        self._every = first.log_every
        self._histories = [History() for _ in trainers]
        self._errors: list[NonFiniteError | None] = [None for _ in trainers]
        self._window = self._sums()
        self._paces = {"train": Pace(), "evaluate": Pace()}
        self._at = Progress(batches=len(self._batches[0]))

    def run(self, epochs: int) -> list[Outcome]:
        """Train all of them for some epochs.

        Raises:
            TrainingInterrupted: Ctrl-C.
        """
        self._at = replace(self._at, epochs=epochs)
        for engine in self._engines:
            engine.begin_steps()
        self._hyper = [engine.hyper() for engine in self._engines]
        self._prepare()
        with StopRequest() as self._stop:
            ahead = self._ahead(self._at)
            while not self._at.finished and not all(self._errors):
                told, began = ahead.all(), time.perf_counter()
                lrs = self._begin(told)
                del told  # the device has it
                ahead = self._ahead(self._next_epoch())
                self._train_epoch(lrs, ahead)
                trained = time.perf_counter() - began
                self._add_rows([own[-1] for own in lrs], self._validate(), trained, began)
                self._at = replace(self._at, epoch=self._at.epoch + 1, batch=0)
        for engine in self._engines:
            engine.steps_done = self._at.step
        return [*map(Outcome, self._histories, self._errors)]

    # What an epoch needs.

    def _sums(self) -> _Sums:
        return _Sums(len(self._trainers))

    def _of(self, kind: str) -> DeviceBatches:
        batches = self._batches[0] if kind == "train" else self._validation
        assert isinstance(batches, DeviceBatches)
        return batches

    def _prepare(self) -> None:
        """Capture all graphs before the clock of an epoch runs."""
        for (kind, size), runner in self._runners.items():
            sizes = self._of(kind).sizes
            runs = [block.stop - block.start for block in blocks(sizes) if block.size == size]
            runner.prepare(dict.fromkeys(runs))

    def _next_epoch(self) -> Progress:
        at = self._at
        return replace(at, epoch=at.epoch + 1, step=at.step + at.batches)

    def _ahead(self, at: Progress) -> _Ahead:
        made = self._told(at) if not at.finished else iter(())
        return _Ahead(made, at.batches, len(self._trainers))

    def _told(self, at: Progress) -> Iterator[_Epoch]:
        for trainer, batches, engine, row in zip(
            self._trainers, self._batches, self._engines, self._hyper, strict=True
        ):
            assert isinstance(batches, DeviceBatches)
            lrs, hyper = Rates(trainer, at).all()
            order, draws = batches.order(at.epoch), batches.draws(at.epoch)
            yield _Epoch(order, draws, lrs, engine.hyper_rows(hyper, row))

    def _begin(self, told: Sequence[_Epoch]) -> list[Sequence[float]]:
        """Tell the device what the epoch's steps are; returns each network's learning rates."""
        draws = [one.draws for one in told if one.draws is not None]
        for size, runner in self._runners_of("train"):
            own, places = places_of(self._of("train").sizes, size)
            runner.begin(
                [one.order[places] for one in told],
                [one.rates[own] for one in told],
                first_step=self._at.step,
                draws=draws or None,
                left_off=[error is not None for error in self._errors],
            )
        return [one.lrs for one in told]

    def _train_epoch(self, lrs: Sequence[Sequence[float]], ahead: _Ahead) -> None:
        self._totals = self._sums()
        for results, size in self._reported("train"):
            for losses, corrects in zip(results.losses, results.corrects, strict=True):
                self._count(losses, corrects, size, lrs)
            ahead.advance(len(results.losses))

    def _runners_of(self, kind: str) -> Iterator[tuple[int, MemberRunner]]:
        return ((size, runner) for (name, size), runner in self._runners.items() if name == kind)

    def _reported(self, kind: str) -> Iterator[tuple[Results, int]]:
        """The results of an epoch's steps, some at a time, and how many images these have."""
        with closing(self._paces[kind].chunks(self._asked(kind), _AHEAD)) as chunks:
            yield from chunks
        if self._stop.asked is not None:
            raise TrainingInterrupted(
                f"stopped after {self._at.describe()}; members that train together are done "
                "together, so none of these is",
                self._stop.asked,
                None,
            )

    def _asked(self, kind: str) -> Generator[Part, None, None]:
        batch, first, pace = 0, self._at.step, self._paces[kind]
        for block in blocks(self._of(kind).sizes):
            runner = self._runners[kind, block.size]
            while batch < block.stop:
                if self._stop.asked is not None:
                    return
                step = first + batch if kind == "train" else None
                asked = runner.ask(min(pace.most, block.stop - batch), step)
                batch += asked.steps
                yield Part(asked, block.size, settled=False)

    def _count(
        self, losses: np.ndarray, corrects: np.ndarray, n: int, lrs: Sequence[Sequence[float]]
    ) -> None:
        """Take note of a step of all networks; those whose loss is not finite leave off."""
        at = self._at = replace(self._at, batch=self._at.batch + 1, step=self._at.step + 1)
        for member in np.flatnonzero(~np.isfinite(losses)).tolist():
            if self._errors[member] is None:
                what, lr = f"the loss is {float(losses[member])}", lrs[member][at.batch - 1]
                advice = self._trainers[member].optimizer.advice(lr)
                self._errors[member] = non_finite(what, at, advice)
        # Of those that have left off nobody asks; what is left in their places is no figure.
        losses = np.where(np.isfinite(losses), losses, np.float32(0))
        self._totals.add(losses, corrects, n)
        self._window.add(losses, corrects, n)
        if not self._every or at.step % self._every:
            return
        for member, history in self._going():
            means, lr = self._window.means(member), lrs[member][at.batch - 1]
            row = StepRow(at.step, at.epoch + 1, lr, means["loss"], means["accuracy"])
            history.steps.append(row)
        self._window = self._sums()

    def _going(self) -> Iterator[tuple[int, History]]:
        """Those that have not left off."""
        for member, history in enumerate(self._histories):
            if self._errors[member] is None:
                yield member, history

    def _validate(self) -> _Sums | None:
        """Figures over the validation set."""
        if self._validation is None:
            return None
        sums = self._sums()
        for size, runner in self._runners_of("evaluate"):
            rows = len(self._trainers) * [self._validated[size]]
            runner.begin(rows, None, left_off=[error is not None for error in self._errors])
        for results, size in self._reported("evaluate"):
            for losses, corrects in zip(results.losses, results.corrects, strict=True):
                sums.add(losses, corrects, size)
        return sums

    @cached_property
    def _validated(self) -> dict[int, np.ndarray]:
        """{batch size: which samples of the validation set its batches are}."""
        batches = self._of("evaluate")
        order = batches.order(0)
        sizes = dict(self._runners_of("evaluate"))
        return {size: order[places_of(batches.sizes, size)[1]] for size in sizes}

    def _add_rows(
        self, lrs: Sequence[float], figures: _Sums | None, trained: float, began: float
    ) -> None:
        seconds = time.perf_counter() - began
        for member, history in self._going():
            means = self._totals.means(member)
            seen = None if figures is None else figures.means(member)
            row = epoch_row(self._at, lrs[member], means, seen, trained, seconds)
            history.epochs.append(row)
        self._tell(seconds)

    def _tell(self, seconds: float) -> None:
        """Log how far all are, since no member is done before the last epoch is."""
        rows = [history[-1] for _, history in self._going()]
        if not rows:
            return
        what = "accuracy" if rows[0].val_accuracy is None else "validation accuracy"
        found = [row.accuracy if row.val_accuracy is None else row.val_accuracy for row in rows]
        _LOG.info(
            "epoch %d of %d: %d members, %s %.2f to %.2f %%, %.1f s",
            *(self._at.epoch + 1, self._at.epochs, len(rows), what),
            *(100 * min(found), 100 * max(found), seconds),
        )
