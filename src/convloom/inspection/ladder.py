"""What each idea buys: the whole training step, rung by rung and switch by switch.

The ladder begins with the lowest rung run in the plainest way. Each row adds one idea to the row
before: first the rungs of the backend's kernels, then the ways of feeding and launching them. After
it come the switches: the full ladder with one idea taken out.

All rows run the same training step on the same batches from the same weights, and their first
losses must agree; a row that cannot run, or does not agree, says so and is not timed.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from convloom.backends.base import Backend, Executable, LayoutPolicy, Storage
from convloom.inspection.peaks import Peaks, measured
from convloom.inspection.timing import Timing, interleaved
from convloom.inspection.ways import Runner, Way, prepare, ways
from convloom.inspection.workload import Workload
from convloom.ir import ConvloomError, Node, Plan, Selection, TensorSpec
from convloom.ops.base import is_fused
from convloom.ops.precision import FP32

#: What the rungs of the backends add, each to the rung below it; a new rung may go without.
IDEAS = {
    "reference": "NumPy, op by op",
    "naive": "a kernel an op, one thread an output, as a textbook has it",
    "fused": "neighbouring ops in one kernel: what lies between is never stored",
    "tiled": "tiles in shared memory and registers: each value is fetched once for many uses",
    "warp": "sums by shuffles between the threads of a warp",
    "async": "tiles are copied to shared memory while those before them are multiplied",
    "direct": "convolutions gather no patches: inputs slide through registers",
    "tensorcore": "products by tensor cores",
    "onchip": "a few images stay in shared memory from the first layer to the last gradient",
    "dense": "compiled kernels: vectors, register tiles, fused neighbours",
    "sparse": "gradients behind a max-pool: only the cells that won are visited",
    "winograd": "3x3 filters by minimal filtering: fewer multiplications",
}
#: How a switch that takes a rung out is called.
_SWITCHES = {
    "fused": "fusion",
    "tiled": "tiling",
    "warp": "warp sums",
    "async": "async copies",
    "direct": "direct convolution",
    "sparse": "sparse gradients",
}
#: First losses of two rows may differ by rounding, not by more.
_TOLERANCE = {"fp32": 1e-3, "tf32": 5e-3, "bf16": 3e-2}

RUNG, WAY, SWITCH = "rung", "way", "switch"


@dataclass(frozen=True)
class Entry:
    """Something to measure.

    Attributes:
        kind: RUNG and WAY add an idea to the entry before; SWITCH takes one out of the last WAY.
        kernels: the highest rung.
        without: a rung that is left out, or None.
    """

    name: str
    kind: str
    idea: str
    kernels: str
    way: Way
    without: str | None = None


@dataclass(frozen=True)
class Row:
    """What was found for an entry.

    Times are None where nothing was timed; ``of_limit`` too where no peaks are known.

    Attributes:
        rungs: {rung: kernels of this plan on it}.
        kernels: kernels of a step.
        flops, nbytes: of a step, as its plan counts them: a convolution's are those of its direct
            form, so minimal filtering may pass the limit.
        us: microseconds a step, the median of the rounds; ``us_low`` and ``us_high`` the extremes.
        limit_us: the larger of FLOPs over peak rate and bytes over bandwidth, of the plan that
            needs least: the same for all rows, so that a plan gains nothing by needless work.
        of_limit: ``limit_us / us``.
        gain: how many times as fast as the row before; of a switch, as the row without it.
        loss: of the first step; None where it was never made.
        note: what else to know.
        failed: why the row could not run, or that its loss is not the others'; else empty.
    """

    name: str
    kind: str
    idea: str
    rungs: Mapping[str, int]
    kernels: int
    flops: int
    nbytes: int
    loss: float | None
    us: float | None = None
    us_low: float | None = None
    us_high: float | None = None
    steps: int = 1
    images_per_second: float | None = None
    gbytes_per_second: float | None = None
    gflops_per_second: float | None = None
    limit_us: float | None = None
    of_limit: float | None = None
    gain: float | None = None
    note: str = ""
    failed: str = ""


@dataclass(frozen=True)
class Ladder:
    """The study's result.

    Attributes:
        rounds: timed rounds of each row; 0 when each ran one step only.
        peaks: what the limits are made of; None when nothing was timed.
        environment: command, date, hardware, versions.
        precision: of products on the rungs that have such kernels; fp32 on the others.
    """

    network: str
    device: str
    batch_size: int
    rounds: int
    rows: tuple[Row, ...]
    peaks: Peaks | None
    environment: Mapping[str, Any]
    precision: str = FP32

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that could not run, or that compute something else."""
        return tuple(row for row in self.rows if row.failed)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "bench": "ladder",
            "network": self.network,
            "device": self.device,
            "batch_size": self.batch_size,
            "precision": self.precision,
            "rounds": self.rounds,
            "peaks": None if self.peaks is None else asdict(self.peaks),
            "rows": [{**asdict(row), "rungs": dict(row.rungs)} for row in self.rows],
            "environment": dict(self.environment),
        }

    def to_csv(self) -> str:
        """The rows as CSV; what is not known is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = [field.name for field in fields(Row)]
        writer.writerow(names)
        for row in self.rows:
            values = {**asdict(row), "rungs": _counted(row.rungs)}
            writer.writerow(["" if values[name] is None else values[name] for name in names])
        return text.getvalue()


def entries(backend: Backend, *, threads: int | None = None) -> list[Entry]:
    """The ladder of a backend, then its switches.

    Args:
        threads: of the CPU, where their number is a switch.
    """
    rungs, steps = tuple(backend.rungs), ways(backend)
    found = [Entry(rung, RUNG, idea_of(rung), rung, steps[0]) for rung in rungs]
    found += [Entry(way.name, WAY, way.idea, "auto", way) for way in steps[1:]]
    best = steps[-1]
    for rung in ("fused", *(rung for rung in rungs[2:] if rung != "fused")):
        name = _SWITCHES.get(rung, rung)
        found.append(Entry(f"no {name}", SWITCH, f"all but {name}", "auto", best, rung))
    found += [
        Entry(f"no {name}", SWITCH, idea, "auto", way) for name, idea, way in _fewer(best, steps)
    ]
    if threads is not None and threads > 1:
        one = replace(best, threads=1)
        found.append(Entry("no threads", SWITCH, f"one thread, not {threads}", "auto", one))
    return found


def _fewer(best: Way, steps: Sequence[Way]) -> list[tuple[str, str, Way]]:
    """The best way with one of its ideas taken out: (name, words, way)."""
    made = []
    if best.unrolled:
        way = replace(best, unrolled=False)
        made.append(("unrolling", "all but unrolling: a graph a step", way))
    if best.graphs:
        way = replace(best, graphs=False, unrolled=False)
        made.append(("graph", "all but graphs, so without unrolling too", way))
    if best.feed == "resident":
        way = replace(next(way for way in steps if way.feed == "stream"), graphs=True)
        made.append(("resident data", "batches stream, so a graph holds one step", way))
    return made


def idea_of(rung: str) -> str:
    """What a rung adds to the one below it, in words."""
    return IDEAS.get(rung, f"the kernels of rung {rung}")


class Without:
    """A backend that selects no kernel of one rung; ``fused`` also refuses every fused op.

    It makes plans; the backend itself runs them.
    """

    def __init__(self, backend: Backend, rung: str) -> None:
        self._backend = backend
        self._rung = rung
        self.name = backend.name

    @property
    def rungs(self) -> Sequence[str]:
        """The backend's ladder."""
        return self._backend.rungs

    @property
    def layout_policy(self) -> LayoutPolicy:
        """The backend's."""
        return self._backend.layout_policy

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        """The best kernel that is allowed; None if there is none."""
        if self._rung == "fused" and is_fused(node.op):
            return None
        selection = self._backend.select(node, specs, kernels)
        if selection is None or selection.rung != self._rung:
            return selection
        below = self.rungs[: list(self.rungs).index(self._rung)]
        return self._backend.select(node, specs, below[-1]) if below else None

    def storage(self, plan: Plan) -> Storage:
        """The backend's."""
        return self._backend.storage(plan)

    def executable(self, plan: Plan, storage: Storage) -> Executable:
        """The backend's."""
        return self._backend.executable(plan, storage)


def tried(backend: Backend, workload: Workload, wanted: Sequence[Entry]) -> list[Row]:
    """One step of each entry, outputs poisoned before: whether all of them work and agree."""
    return noted(
        agreed([_start(backend, workload, entry)[0] for entry in wanted], workload.precision)
    )


def climbed(
    backend: Backend,
    workload: Workload,
    wanted: Sequence[Entry],
    *,
    rounds: int,
    seconds: float,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[list[Row], Peaks]:
    """Measure every entry that works and agrees with the others, in turn with all others.

    Args:
        rounds: turns of each entry; the median counts.
        seconds: about how long a turn lasts.
        tell: called with a word on what is being done.
    """
    rows: list[Row] = []
    runners: list[Runner | None] = []
    for entry in wanted:
        tell(f"preparing {entry.name}")
        row, runner = _start(backend, workload, entry)
        rows.append(row)
        runners.append(runner)
    rows = agreed(rows, workload.precision)
    tell("measuring the device's peaks")
    peaks = measured(backend)
    tell("warming up")
    sound = [
        (at, runner)
        for at, (row, runner) in enumerate(zip(rows, runners, strict=True))
        if runner is not None and not row.failed
    ]
    timings = interleaved(
        [runner for _, runner in sound],
        rounds=rounds,
        seconds=seconds,
        tell=lambda done: tell(f"round {done} of {rounds} done"),
    )
    limit = min((peaks.seconds(rows[at].flops, rows[at].nbytes) for at, _ in sound), default=0.0)
    for (at, _), timing in zip(sound, timings, strict=True):
        rows[at] = _timed(rows[at], timing, limit, workload.batch_size)
    return noted(with_gains(rows)), peaks


def agreed(rows: Sequence[Row], precision: str = FP32) -> list[Row]:
    """Rows, those marked as failed whose first loss is not finite or not that of the first row."""
    tolerance = _TOLERANCE[precision]
    known = [row for row in rows if row.loss is not None and math.isfinite(row.loss)]
    made = []
    for row in rows:
        if row.loss is not None and not math.isfinite(row.loss):
            row = replace(row, failed=f"the first loss is {row.loss}: an output is left unmade")
        elif row.loss is not None and not math.isclose(
            row.loss, known[0].loss or 0.0, rel_tol=tolerance, abs_tol=tolerance
        ):
            row = replace(
                row,
                failed=f"the first loss is {row.loss}, that of {known[0].name} {known[0].loss}: "
                "one of them computes something else",
            )
        made.append(row)
    return made


def with_gains(rows: Sequence[Row]) -> list[Row]:
    """Rows with ``gain``: against the row before, and for a switch against the full ladder."""
    made: list[Row] = []
    climb = [row for row in rows if row.kind != SWITCH]
    for row in rows:
        us, gain = row.us, None
        if row.kind == SWITCH and us and climb[-1].us:
            gain = us / climb[-1].us
        elif row.kind != SWITCH and us:
            before = made[-1].us if made else None
            gain = None if before is None else before / us
        made.append(replace(row, gain=gain))
    return made


def noted(rows: Sequence[Row]) -> list[Row]:
    """Rows with a note where a rung adds no kernel to the rung below."""
    made: list[Row] = []
    for row in rows:
        if row.kind == RUNG and made and row.rungs == made[-1].rungs:
            row = replace(row, note=f"the same kernels as {made[-1].name}")
        made.append(row)
    return made


def _start(backend: Backend, workload: Workload, entry: Entry) -> tuple[Row, Runner | None]:
    """The first step of an entry; a failure is the row's, so that the others can still run."""
    blank = Row(entry.name, entry.kind, entry.idea, {}, 0, 0, 0, None)
    try:
        maker = backend if entry.without is None else Without(backend, entry.without)
        plan = workload.plan(maker, entry.kernels)
        blank = _described(blank, plan)
        runner = prepare(backend, workload, plan, entry.way)
        return replace(blank, loss=runner.start()), runner
    except ConvloomError as error:
        return replace(blank, failed=str(error)), None


def _described(row: Row, plan: Plan) -> Row:
    return replace(
        row,
        rungs=dict(Counter(step.selection.rung for step in plan.steps)),
        kernels=sum(_launches(step.selection.launch) for step in plan.steps),
        flops=sum(step.flops for step in plan.steps),
        nbytes=sum(step.nbytes for step in plan.steps),
    )


def _launches(launch: Any) -> int:
    phases = getattr(launch, "phases", None)
    return 1 if phases is None else len(phases)


def _timed(row: Row, timing: Timing, limit: float, batch_size: int) -> Row:
    seconds = timing.median
    return replace(
        row,
        us=1e6 * seconds,
        us_low=1e6 * timing.fastest,
        us_high=1e6 * timing.slowest,
        steps=timing.steps,
        images_per_second=batch_size / seconds,
        gbytes_per_second=row.nbytes / seconds / 1e9,
        gflops_per_second=row.flops / seconds / 1e9,
        limit_us=1e6 * limit,
        of_limit=limit / seconds,
    )


def _counted(rungs: Mapping[str, int]) -> str:
    return " ".join(f"{rung}:{count}" for rung, count in rungs.items())
