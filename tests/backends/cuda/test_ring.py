"""Batches through the ring give the bits of batches that the host writes, in whatever order the
device does what it may do in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from convloom import normalise
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import Call
from convloom.backends.cuda.ring import REPORTS, SLOTS, Ring, StreamedSteps
from convloom.backends.feeding import Asked, Samples
from convloom.ir import ShapeError
from convloom.ops.control import hyper_vector
from tests.backends.cuda.hostgpu import HostGpu, Memory
from tests.backends.cuda.networks import (
    assert_same_bits,
    bound,
    evaluate_plan,
    parameters,
    pixels,
    train_plan,
    write_batch,
)

MEAN, STD = (0.31, 0.52), (0.27, 0.19)
SCALE, SHIFT = normalise.coefficients(MEAN, STD)
N = 5
STEPS = 3 * SLOTS + 2
MAIN, SIDE = 0, 1


class Moment:
    """A place in one of a LateGpu's queues."""

    def __init__(self, gpu: LateGpu, queue: int, place: int) -> None:
        self.gpu, self.queue, self.place = gpu, queue, place

    @property
    def due(self) -> bool:
        return self.gpu.done[self.queue] >= self.place

    def __call__(self) -> None:
        self.gpu.run(self.queue, self.place)


class LateGpu(HostGpu):
    """Does everything as late as it may: when the host waits, or the other stream does.

    With ``eager`` the side stream does everything as early as it may instead.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.queues: tuple[list[tuple[Moment | None, Callable[[], None]]], ...] = ([], [])
        self.done = [0, 0]
        self.eager = False

    def run(self, queue: int, until: int) -> None:
        while self.done[queue] < until:
            after, work = self.queues[queue][self.done[queue]]
            if isinstance(after, Moment) and not after.due:
                after()  # which may have hurried this queue on
                continue
            work()
            self.done[queue] += 1
            self.hurry()

    def ask(
        self, queue: int, work: Callable[[], None], after: Callable[[], None] | None = None
    ) -> Moment:
        assert after is None or isinstance(after, Moment)
        self.queues[queue].append((after, work))
        self.hurry()
        return Moment(self, queue, len(self.queues[queue]))

    def hurry(self) -> None:
        """With ``eager``, do all of the side stream that nothing holds up."""
        done, queue = self.done[SIDE], self.queues[SIDE]
        if self.eager and done < len(queue) and (queue[done][0] is None or queue[done][0].due):
            self.run(SIDE, done + 1)

    def allocate(self, nbytes: int) -> Memory:
        memory = super().allocate(nbytes + 4096)  # room for kernels that go astray
        memory.array[...] = 0xA5

        def clear(array: np.ndarray = memory.array) -> None:
            array[...] = 0

        self.ask(MAIN, clear)
        return memory

    def upload(self, address: int, values: np.ndarray) -> None:
        staged = values.copy()
        self.ask(MAIN, lambda: super(LateGpu, self).upload(address, staged))

    def download(self, address: int, values: np.ndarray) -> None:
        self.synchronize()
        super().download(address, values)

    def download_later(self, address: int, values: np.ndarray) -> None:
        self.ask(MAIN, lambda: super(LateGpu, self).download(address, values))

    def upload_aside(
        self, address: int, values: np.ndarray, after: Callable[[], None]
    ) -> Callable[[], None]:
        return self.ask(SIDE, lambda: super(LateGpu, self).upload(address, values), after)

    def follow(self, mark: Callable[[], None]) -> None:
        self.ask(MAIN, lambda: None, mark)

    def prepare(self, call: Call) -> Callable[[], None]:
        launch = super().prepare(call)

        def later() -> None:
            if self._recording is not None:
                launch()
            else:
                self.ask(MAIN, launch)

        return later

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        replay = super().capture(work)
        return lambda: self.ask(MAIN, replay) and None

    def mark(self) -> Callable[[], None]:
        return Moment(self, MAIN, len(self.queues[MAIN]))

    def synchronize(self) -> None:
        self.run(MAIN, len(self.queues[MAIN]))


@pytest.fixture
def late(gpu: HostGpu, objects: Path) -> LateGpu:
    return LateGpu(objects)


def trainer(gpu: HostGpu, n: int = N) -> CudaExecutable:
    backend = CudaBackend(gpu)
    made = bound(backend, train_plan(backend, n))
    assert isinstance(made, CudaExecutable)
    return made


def like(floats: bool = False) -> Samples:
    one = pixels()
    if floats:
        none = np.empty(0, np.float32)
        return Samples(one.images.astype(np.float32), one.labels, none, none)
    return Samples(one.images, one.labels, SCALE, SHIFT)


def batches(steps: int = STEPS, n: int = N) -> list[np.ndarray]:
    return list(np.random.default_rng(3).integers(0, 40, (steps, n)))


def rates(step: int) -> np.ndarray:
    return hyper_vector({"lr": 0.1 / (1 + step), "momentum": 0.9})


def streamed(steps: StreamedSteps, rows: list[np.ndarray], first: int = 0) -> Iterator[Asked]:
    """Asks for every step before any result is looked at; the arrays change at once."""
    one = pixels()
    for step, row in enumerate(rows):
        images, labels, values = one.images[row], one.labels[row], rates(step)
        yield steps.ask(images, labels, values, first + step)
        images[...], labels[...], values[...] = 7, 0, 9


def by_hand(executable: CudaExecutable, rows: list[np.ndarray], first: int = 0) -> list[float]:
    one, losses = pixels(), []
    for step, row in enumerate(rows):
        write_batch(executable, normalise.normalise(one.images[row], MEAN, STD), one.labels[row])
        executable.write("hyper", rates(step))
        executable.write("counter", np.array([7, first + step], np.uint64))
        executable.run()
        losses.append(float(executable.read("loss")))
    return losses


def losses(asked: list[Asked]) -> list[float]:
    return [float(one.results().losses[0]) for one in asked]


def test_same_bits_as_the_host_path(gpu: HostGpu) -> None:
    ours, fed = trainer(gpu), trainer(gpu)
    steps = StreamedSteps(ours, Ring(gpu, like(), N))
    got = losses(list(streamed(steps, batches(), first=4)))
    assert got == by_hand(fed, batches(), first=4)
    assert_same_bits(parameters(ours), parameters(fed))
    assert ours.storage.read("counter").tolist() == [7, 4 + STEPS - 1]
    np.testing.assert_array_equal(ours.storage.read("hyper"), rates(STEPS - 1))


@pytest.mark.parametrize("eager", [False, True])
def test_in_any_order_that_the_marks_allow(late: LateGpu, gpu: HostGpu, eager: bool) -> None:
    ours, fed = trainer(late), trainer(gpu)
    late.eager = eager
    got = losses(list(streamed(StreamedSteps(ours, Ring(late, like(), N)), batches())))
    assert got == by_hand(fed, batches())
    assert_same_bits(parameters(ours), parameters(fed))


@pytest.mark.parametrize(
    ("eager", "broken"), [(False, "follow"), (False, "copied"), (True, "used")]
)
def test_each_mark_is_needed(
    late: LateGpu, gpu: HostGpu, monkeypatch: pytest.MonkeyPatch, eager: bool, broken: str
) -> None:
    """The stand-in finds what a missing mark would do: without it, this file would show nothing."""
    steps = StreamedSteps(trainer(late), Ring(late, like(), 12 * N))
    late.eager = eager
    at_once = Moment(late, MAIN, 0)
    if broken == "follow":
        monkeypatch.setattr(late, "follow", lambda mark: None)
    original = LateGpu.upload_aside

    def aside(
        self: LateGpu, address: int, values: np.ndarray, after: Callable[[], None]
    ) -> Callable[[], None]:
        copied = original(self, address, values, at_once if broken == "used" else after)
        return at_once if broken == "copied" else copied

    monkeypatch.setattr(LateGpu, "upload_aside", aside)
    rows = batches(2 * SLOTS)
    assert losses(list(streamed(steps, rows))) != by_hand(trainer(gpu), rows)


def test_short_batches_pass_the_same_ring(late: LateGpu, gpu: HostGpu) -> None:
    full, fed = trainer(late), trainer(gpu)
    ring = Ring(late, like(), N)
    rest = CudaBackend(late).executable(train_plan(CudaBackend(late), 3), full.storage)
    fed_rest = CudaBackend(gpu).executable(train_plan(CudaBackend(gpu), 3), fed.storage)
    assert isinstance(fed_rest, CudaExecutable)
    assert isinstance(rest, CudaExecutable)
    long, short = StreamedSteps(full, ring), StreamedSteps(rest, ring)
    for epoch in range(2):
        rows, last = batches(4), batches(1, n=3)
        asked = [*streamed(long, rows, 5 * epoch), *streamed(short, last, 5 * epoch + 4)]
        wanted = [*by_hand(fed, rows, 5 * epoch), *by_hand(fed_rest, last, 5 * epoch + 4)]
        assert losses(asked) == wanted
    assert_same_bits(parameters(full), parameters(fed))


def test_reports_outlive_their_place(late: LateGpu, gpu: HostGpu) -> None:
    """More steps are asked for than reports have room; the first of them can still be taken."""
    rows = batches(2 * REPORTS + 3)
    asked = list(streamed(StreamedSteps(trainer(late), Ring(late, like(), N)), rows))
    assert losses(asked) == losses(asked) == by_hand(trainer(gpu), rows)


def test_evaluation_updates_nothing(gpu: HostGpu) -> None:
    training = trainer(gpu)
    backend = CudaBackend(gpu)
    evaluation = backend.executable(evaluate_plan(backend, N), training.storage)
    assert isinstance(evaluation, CudaExecutable)
    before, one = parameters(training), pixels()
    steps = StreamedSteps(evaluation, Ring(gpu, like(), N))
    for row in batches(4):
        got = steps.ask(one.images[row], one.labels[row], None, 0).results()
        images = normalise.normalise(one.images[row], MEAN, STD)
        write_batch(evaluation, images, one.labels[row])
        evaluation.run()
        assert got.losses.tolist() == [float(evaluation.read("loss"))]
        np.testing.assert_array_equal(got.corrects, [evaluation.read("correct")])
    assert_same_bits(parameters(training), before)


def test_floats_are_taken_as_they_are(gpu: HostGpu) -> None:
    ours, fed, one = trainer(gpu), trainer(gpu), like(floats=True)
    steps = StreamedSteps(ours, Ring(gpu, one, N))
    for step, row in enumerate(batches(3)):
        got = steps.ask(one.images[row] / 99, one.labels[row], rates(step), step).results()
        write_batch(fed, one.images[row] / 99, one.labels[row])
        fed.write("hyper", rates(step))
        fed.write("counter", np.array([7, step], np.uint64))
        fed.run()
        assert got.losses[0] == fed.read("loss")
    assert_same_bits(parameters(ours), parameters(fed))


def test_what_does_not_fit_is_refused(gpu: HostGpu) -> None:
    executable, one = trainer(gpu), pixels()
    ring = Ring(gpu, like(), N)
    steps = StreamedSteps(executable, ring)
    images, labels = one.images[:N], one.labels[:N]
    launched = len(gpu.launched)
    with pytest.raises(ShapeError, match=r"a batch must be uint8 \(5, "):
        steps.ask(images[:4], labels[:4], rates(0), 0)
    with pytest.raises(ShapeError, match="it is float32"):
        steps.ask(images.astype(np.float32), labels, rates(0), 0)
    with pytest.raises(ShapeError, match=r"labels must be int64 \(5,\)"):
        steps.ask(images, labels[:4], rates(0), 0)
    with pytest.raises(ShapeError, match="they are None"):
        steps.ask(images, labels, None, 0)
    with pytest.raises(ShapeError, match="batches of up to 3 images, the plan takes 5"):
        StreamedSteps(executable, Ring(gpu, like(), 3))
    none = np.empty(0, np.float32)
    with pytest.raises(ShapeError, match="uint8 images of 2 channels came with 0 scales"):
        Ring(gpu, Samples(one.images, one.labels, none, none), N)
    assert len(gpu.launched) == launched
