"""Training from end to end beside another framework: images a second, and how busy the GPU is."""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from convloom.backends import Backend
from convloom.inspection.busy import SOURCE, BusyMeter
from convloom.inspection.timing import MOST_STEPS
from convloom.inspection.ways import prepare, ways
from convloom.inspection.workload import Workload
from convloom.ops.precision import FP32
from convloom.training import feeding
from convloom.training.engine import Engine
from convloom.training.feeding import Course, Feed
from convloom.training.protocols import Batches

#: What a row measures: steps on batches that lie on the device, or from the data set on.
STEP, END_TO_END = "step", "end to end"


class Runner(Protocol):
    """Something that trains for a while."""

    def run_for(self, seconds: float) -> tuple[int, float]:
        """Train for about so long; images and the seconds that they took."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


@dataclass(frozen=True)
class Candidate:
    """Something to compare.

    Attributes:
        engine: whose it is.
        what: STEP or END_TO_END.
        make: makes the runner; what it raises becomes the row's note.
        settings: what sets it apart from others of its name.
    """

    name: str
    engine: str
    what: str
    make: Callable[[], Runner]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """What was found.

    Attributes:
        images_per_second: the median of the rounds; ``low`` and ``high`` the extremes; None where
            it could not run, and ``note`` says why.
        us: microseconds a step.
        busy: share of the time in which the GPU ran kernels; None where nobody can say.
        ratio: times as fast as the engine that it is compared with at its best, of the same kind.
    """

    name: str
    engine: str
    what: str
    settings: Mapping[str, Any]
    images_per_second: float | None = None
    low: float | None = None
    high: float | None = None
    us: float | None = None
    busy: float | None = None
    ratio: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Versus:
    """The comparison's result.

    Attributes:
        environment: command, date, hardware, versions.
        busy_source: how the GPU's busy share was found.
        precision: of both engines' products.
        notes: why some of convloom's products are in fp32 none the less.
    """

    network: str
    device: str
    batch_size: int
    rounds: int
    seconds: float
    rows: tuple[Row, ...]
    environment: Mapping[str, Any]
    busy_source: str = SOURCE
    precision: str = FP32
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        rows = [{**asdict(row), "settings": dict(row.settings)} for row in self.rows]
        return {"bench": "pytorch", **asdict(replace(self, rows=())), "rows": rows}

    def to_csv(self) -> str:
        """The rows as CSV; what is not known is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = [field.name for field in fields(Row)]
        writer.writerow(names)
        for row in self.rows:
            settings = " ".join(f"{key}={value}" for key, value in row.settings.items())
            values = {**asdict(row), "settings": settings}
            writer.writerow(["" if values[name] is None else values[name] for name in names])
        return text.getvalue()


class OurTraining:
    """Training as the Trainer does it, without its display and its checkpoints.

    Args:
        kind: ``plain``, ``stream`` or ``resident``: how batches reach the device.
    """

    def __init__(self, engine: Engine, batches: Batches, kind: str) -> None:
        self._engine = engine
        self._batches = batches
        self._feed = make_feed(engine, batches, kind)
        self._epoch = 0

    def run_for(self, seconds: float) -> tuple[int, float]:
        """Train for about so long; images and seconds, each step's loss having been read."""
        start, images = time.perf_counter(), 0

        def over() -> bool:
            return images > 0 and time.perf_counter() - start >= seconds

        while not over():
            for count in self._trained(over):
                images += count
        return images, time.perf_counter() - start

    def close(self) -> None:
        """Nothing is held that would have to be given back by hand."""

    def _trained(self, over: Callable[[], bool]) -> Iterator[int]:
        """The images of steps that ended together, over an epoch, which ends early when the time is
        over."""
        assert self._engine.optimizer is not None
        hyper = self._engine.optimizer.hyper(0)
        count = len(self._batches)
        course = Course([hyper] * count, settled=lambda step: False, stop=over, another=True)
        with feeding.finished(self._feed.train(self._epoch, 0, course)) as steps:
            for results in steps:
                yield results.n * len(results)
        self._epoch += 1


class OurSteps:
    """Steps in the fastest way of a backend, without a data set's order to keep."""

    def __init__(self, backend: Backend, workload: Workload) -> None:
        self._runner = prepare(backend, workload, workload.plan(backend, "auto"), ways(backend)[-1])
        self._batch_size = workload.batch_size
        self.first_loss = self._runner.start()
        self._steps = 1

    def run_for(self, seconds: float) -> tuple[int, float]:
        """Take steps for about so long; images and seconds."""
        start, done = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < seconds or not done:
            self._runner.run(self._steps)
            done += self._steps
            if spent < seconds / 8:
                self._steps = min(MOST_STEPS, 2 * self._steps)
        return done * self._batch_size, time.perf_counter() - start

    def close(self) -> None:
        """Nothing is held that would have to be given back by hand."""


def make_feed(engine: Engine, batches: Batches, kind: str) -> Feed:
    """The feed of a kind. Raises InputError where the device does not have it."""
    if kind == "plain":
        return feeding.PlainFeed(engine, batches)
    return feeding.make_feed(engine, batches, kind, kind="train", data="random")


def compared(
    candidates: Sequence[Candidate],
    *,
    batch_size: int,
    rounds: int,
    seconds: float,
    gpu: bool,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Run each candidate some times; one after the other, since some hold many processes.

    Args:
        rounds: turns of each; the median counts. One more before them warms up.
        seconds: about how long a turn lasts.
        gpu: whether to look how busy the GPU is.
    """
    rows = []
    for candidate in candidates:
        tell(f"{candidate.engine} {candidate.name}")
        blank = Row(candidate.name, candidate.engine, candidate.what, candidate.settings)
        try:
            row = _measured(blank, candidate.make(), batch_size, rounds, seconds, gpu)
        except Exception as error:  # one that cannot run here must not end the others
            first = (str(error).strip().splitlines() or [""])[0]
            row = replace(blank, note=f"could not run: {type(error).__name__}: {first}")
        rows.append(row)
    return with_ratios(rows)


def with_ratios(rows: Sequence[Row], against: str = "pytorch") -> list[Row]:
    """Rows of other engines with ``ratio``: to the best of ``against`` that measures the same."""
    best: dict[str, float] = {}
    for row in rows:
        if row.engine == against and row.images_per_second is not None:
            best[row.what] = max(best.get(row.what, 0.0), row.images_per_second)
    made = []
    for row in rows:
        known = row.engine != against and row.images_per_second is not None and row.what in best
        if known and row.images_per_second is not None:
            row = replace(row, ratio=row.images_per_second / best[row.what])
        made.append(row)
    return made


def _measured(
    row: Row, runner: Runner, batch_size: int, rounds: int, seconds: float, gpu: bool
) -> Row:
    try:
        runner.run_for(seconds / 2)
        meter = BusyMeter() if gpu else None
        if meter is None:
            spans = [runner.run_for(seconds) for _ in range(rounds)]
        else:
            with meter:
                spans = [runner.run_for(seconds) for _ in range(rounds)]
    finally:
        runner.close()
    rates = [images / spent for images, spent in spans]
    middle = statistics.median(rates)
    return replace(
        row,
        images_per_second=middle,
        low=min(rates),
        high=max(rates),
        us=1e6 * batch_size / middle,
        busy=None if meter is None else meter.share,
    )
