"""When checkpoints are written, by a clock of the test's own; and that nothing is lost by it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convloom.training import (
    Callback,
    Moment,
    NonFiniteError,
    TrainingInterrupted,
    checkpoint,
    saving,
)
from convloom.training.checkpoint import BEST, LAST, Checkpoint
from convloom.training.saving import CHEAP, SPACING, Spacing
from convloom.training.trainer import Trainer
from tests.training.helpers import (
    InterpretedEngine,
    images_and_labels,
    make_trainer,
    small_network,
)

DATA = images_and_labels(16)  # two steps an epoch
HELD_OUT = images_and_labels(20, seed=1)
EPOCHS = 24


class Clock(Callback):
    """An epoch takes a second, and each file that is written as long as it says.

    Attributes:
        written: (epoch, file) of every checkpoint.
        held: epoch of the best one that has been kept, after each epoch.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file_takes: float) -> None:
        self.now = 0.0
        self.file_takes = file_takes
        self.written: list[tuple[int, str]] = []
        monkeypatch.setattr(saving, "_now", lambda: self.now)
        save = checkpoint.save

        def slow(saved: Checkpoint) -> None:
            save(saved)
            self.now += self.file_takes

        monkeypatch.setattr(checkpoint, "save", slow)

    def on_epoch(self, moment: Moment) -> None:
        self.now += 1.0

    def on_checkpoint(self, moment: Moment, path: str) -> None:
        self.written.append((moment.progress.epoch, Path(path).name))

    @property
    def last(self) -> list[int]:
        """The epochs of each ``last.safetensors``."""
        return [epoch for epoch, name in self.written if name == LAST]


def trainer(out: Path | None, *callbacks: Callback, **changes: Any) -> Trainer:
    """Learns slowly, with a rate that spoils the last epochs: the best is one in the middle."""
    settings = {"schedule": f"step:every={EPOCHS * 3 // 4},gamma=200", "clip_norm": 1.0, **changes}
    return make_trainer(small_network(), out=out, callbacks=callbacks, **settings)


def assert_same_network(one: Path, other: Path) -> None:
    ours, theirs = checkpoint.load(one), checkpoint.load(other)
    assert ours.record["progress"] == theirs.record["progress"]
    assert ours.state.keys() == theirs.state.keys()
    for name, value in theirs.state.items():
        np.testing.assert_array_equal(ours.state[name], value, err_msg=name)


@pytest.fixture
def straight(tmp_path: Path, no_time: None) -> Trainer:
    """A run whose checkpoints cost nothing."""
    made = trainer(tmp_path / "straight")
    made.fit(DATA, EPOCHS, HELD_OUT)
    best = made.history.best()
    assert best is not None
    assert EPOCHS // 4 < best.epoch < EPOCHS
    return made


# The rule.


def test_the_first_is_due_and_cheap_ones_always_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(saving, "_now", lambda: now[0])
    spacing = Spacing()
    for _ in range(3):
        assert spacing.due()
        with spacing.writing():
            now[0] += CHEAP / 2
    assert spacing.due()


def test_a_costly_one_is_due_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(saving, "_now", lambda: now[0])
    spacing = Spacing()
    with spacing.writing():
        now[0] += 2.0
    now[0] += 2.0 * SPACING - 0.5
    assert not spacing.due()
    now[0] += 0.5
    assert spacing.due()
    with spacing.writing():  # as long as the last one took counts
        now[0] += 1.0
    now[0] += SPACING
    assert spacing.due()


def test_one_that_failed_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(saving, "_now", lambda: now[0])
    spacing = Spacing()

    def fail() -> None:
        now[0] += 100.0
        raise OSError("full")

    with pytest.raises(OSError, match="full"), spacing.writing():
        fail()
    assert spacing.due()


# Runs.


def test_cheap_checkpoints_are_written_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, CHEAP / 2)
    trainer(tmp_path, clock).fit(DATA, EPOCHS, HELD_OUT)
    assert clock.last == list(range(1, EPOCHS + 1))


def test_costly_checkpoints_are_spaced(
    tmp_path: Path, straight: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files in the end are those of a run that writes all of them."""
    clock = Clock(monkeypatch, 0.5)
    made = trainer(tmp_path, clock)
    made.fit(DATA, EPOCHS, HELD_OUT)
    # After epoch 1, both files in a second; so ten epochs later, and twice that at the end.
    assert clock.written[:4] == [(1, BEST), (1, LAST), (11, BEST), (11, LAST)]
    assert clock.last == [1, 11, 21, EPOCHS]
    assert len(made.history) == EPOCHS
    for name in (BEST, LAST):
        assert_same_network(tmp_path / name, tmp_path / "straight" / name)


def test_a_run_of_many_epochs_spends_little_on_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, 2.0)
    trainer(tmp_path, clock, schedule=None).fit(DATA, 100)
    wrote = clock.now - 100
    first, last = 4.0, 4.0
    assert wrote - first - last <= 100 / SPACING


def test_asked_for_ones_are_written_however_long_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, 100.0)
    trainer(tmp_path, clock, checkpoint_every=3).fit(DATA, 5)
    steps = [epoch for epoch, name in clock.written if name == LAST]
    # Steps 3, 6, 9 lie in epochs 2, 3 and 5; the end of the run is one more.
    assert steps == [1, 1, 2, 4, 5]
    assert clock.written[-1] == (5, LAST)


class StopAt(Callback):
    """Asks to stop after a step, or behind the validation that follows."""

    def __init__(self, step: int, validated: bool) -> None:
        self.step = step
        self.validated = validated

    def on_step(self, moment: Moment) -> None:
        if moment.progress.step == self.step and not self.validated:
            moment.trainer.stop()

    def on_epoch(self, moment: Moment) -> None:
        if moment.progress.step == self.step:
            moment.trainer.stop()


@pytest.mark.parametrize(
    ("step", "validated", "epoch"), [(11, False, 5), (12, False, 5), (12, True, 6)]
)
def test_a_stop_writes_all_once(
    tmp_path: Path,
    straight: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    validated: bool,
    epoch: int,
) -> None:
    """In the middle of an epoch and at its end, between two checkpoints."""
    clock = Clock(monkeypatch, 100.0)
    with pytest.raises(TrainingInterrupted):
        trainer(tmp_path, clock, StopAt(step, validated)).fit(DATA, EPOCHS, HELD_OUT)
    assert clock.written[2:] == [(epoch, BEST), (epoch, LAST)]
    assert checkpoint.load(tmp_path / LAST).record["progress"]["step"] == step
    resumed = trainer(tmp_path)
    resumed.fit(DATA, EPOCHS, HELD_OUT, resume=True)
    for name in (BEST, LAST):
        assert_same_network(tmp_path / name, tmp_path / "straight" / name)


def test_a_stop_at_an_epochs_end_saves_once(tmp_path: Path, no_time: None) -> None:
    written: list[str] = []

    class Notes(StopAt):
        def on_checkpoint(self, moment: Moment, path: str) -> None:
            written.append(Path(path).name)

    with pytest.raises(TrainingInterrupted):
        trainer(tmp_path, Notes(2, True)).fit(DATA, EPOCHS, HELD_OUT)
    assert written == [BEST, LAST]


@pytest.mark.parametrize("step", [15, 23, 43])
def test_a_killed_run_is_resumed_to_the_same_end(
    tmp_path: Path, straight: Trainer, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Killed between two checkpoints: the epochs since the last one are made again."""

    class Killed(Callback):
        def on_step(self, moment: Moment) -> None:
            if moment.progress.step == step:
                os.kill(os.getpid(), signal.SIGKILL)

    clock = Clock(monkeypatch, 0.5)
    child = os.fork()
    if child == 0:
        trainer(tmp_path, clock, Killed()).fit(DATA, EPOCHS, HELD_OUT)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    at = checkpoint.load(tmp_path / LAST).record
    assert at["progress"]["epoch"] == len(at["history"]["epochs"]) == (step // 2 - 1) // 10 * 10 + 1
    resumed = trainer(tmp_path, clock)
    resumed.fit(DATA, EPOCHS, HELD_OUT, resume=True)
    for name in (BEST, LAST):
        assert_same_network(tmp_path / name, tmp_path / "straight" / name)
    for column in ("epoch", "step", "lr", "loss", "accuracy", "val_loss", "val_accuracy"):
        assert resumed.history.column(column) == straight.history.column(column)
    assert resumed.history.steps == straight.history.steps


def test_a_run_that_fails_keeps_the_best_epoch(
    tmp_path: Path, straight: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks(Callback):
        def on_step(self, moment: Moment) -> None:
            if moment.progress.step == 15:
                moment.trainer.engine.write("0.bias", np.full(4, np.nan, np.float32))

    clock = Clock(monkeypatch, 100.0)
    with pytest.raises(NonFiniteError, match="last good weights"):
        trainer(tmp_path, clock, Breaks()).fit(DATA, EPOCHS, HELD_OUT)
    assert clock.written == [(1, BEST), (1, LAST), (7, BEST)]
    best = max(straight.history.epochs[:7], key=lambda row: (row.val_accuracy, -row.val_loss))
    assert checkpoint.load(tmp_path / BEST).record["progress"]["epoch"] == best.epoch
    assert checkpoint.load(tmp_path / LAST).record["progress"]["epoch"] == 1


def test_weights_that_are_not_finite_take_no_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch's are looked at when they are kept, not when they are written."""

    class Spoils(InterpretedEngine):
        def train_step(self, images: np.ndarray, targets: np.ndarray) -> Any:
            result = super().train_step(images, targets)
            if int(self.held["counter"][1]) == 14:
                self.held["0.bias"][1] = np.inf
            return result

    clock = Clock(monkeypatch, 100.0)
    made = trainer(tmp_path, clock, engine=Spoils)
    with pytest.raises(NonFiniteError, match=r"0\.bias has become NaN or infinite at step 14"):
        made.fit(DATA, EPOCHS)
    assert clock.written == [(1, BEST), (1, LAST), (7, BEST)]
    assert checkpoint.load(tmp_path / BEST).record["progress"]["epoch"] == 6


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1.0)
    trainer(None, clock).fit(DATA, 3, HELD_OUT)
    assert clock.written == []
