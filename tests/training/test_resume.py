"""Stopping and going on: the same bits, the same order, the same table as without the stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom
from convloom import nn, optim
from convloom.data import Augmentation
from convloom.training import Callback, Moment, NonFiniteError, TrainingInterrupted, checkpoint
from convloom.training.checkpoint import CheckpointError, ResumeError
from convloom.training.protocols import StepResult
from convloom.training.trainer import Trainer, TrainerError
from tests.training.helpers import (
    InterpretedEngine,
    images_and_labels,
    make_trainer,
    small_network,
)

DATA = images_and_labels(44, channels=2)  # batch 8: five full batches and one of 4
HELD_OUT = images_and_labels(20, channels=2, seed=1)


class Recording(InterpretedEngine):
    """Keeps every training batch that it was given."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.batches: list[tuple[bytes, bytes]] = []

    def train_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        self.batches.append((images.tobytes(), targets.tobytes()))
        return super().train_step(images, targets)


class StopAt(Callback):
    """Asks to stop after a step."""

    def __init__(self, step: int, how: Callable[[Trainer], None]) -> None:
        self.step, self.how = step, how

    def on_step(self, moment: Moment) -> None:
        if moment.progress.step == self.step:
            self.how(moment.trainer)


def by_code(trainer: Trainer) -> None:
    trainer.stop()


def by_signal(number: int) -> Callable[[Trainer], None]:
    return lambda trainer: os.kill(os.getpid(), number)


def trainer(out: Path | None = None, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "schedule": "one-cycle:max=0.1,base-momentum=0.85,max-momentum=0.95",
        "augment": Augmentation(padding=1, flip=True),
        "engine": Recording,
        "out": out,
        **changes,
    }
    return make_trainer(small_network(channels=2), **settings)


def assert_same_end(resumed: Trainer, straight: Trainer) -> None:
    ours, theirs = resumed.engine.state(), straight.engine.state()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    for mine, other in zip(resumed.history, straight.history, strict=True):
        assert replace(mine, seconds=0, images_per_second=0) == replace(
            other, seconds=0, images_per_second=0
        )
    assert resumed.history.steps == straight.history.steps


@pytest.mark.parametrize("optimizer", [None, optim.AdamW(lr=0.01)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("stop_at", [1, 6, 8, 11, 12])
def test_a_resumed_run_is_the_same_bits(
    tmp_path: Path, stop_at: int, optimizer: optim.Optimizer | None
) -> None:
    """Twice six steps, stopped after ``stop_at``: in mid-epoch, at an epoch's end, at the end."""
    changes = {} if optimizer is None else {"optimizer": optimizer}
    straight = trainer(**changes)
    straight.fit(DATA, epochs=2, validation=HELD_OUT)

    stopped = trainer(tmp_path, callbacks=[StopAt(stop_at, by_code)], **changes)
    with pytest.raises(TrainingInterrupted):
        stopped.fit(DATA, epochs=2, validation=HELD_OUT)
    resumed = trainer(tmp_path, **changes)
    resumed.fit(DATA, epochs=2, validation=HELD_OUT, resume=True)

    assert_same_end(resumed, straight)
    seen = stopped.engine.batches + resumed.engine.batches  # type: ignore[attr-defined]
    assert seen == straight.engine.batches  # type: ignore[attr-defined]
    assert len(stopped.engine.batches) == stop_at  # type: ignore[attr-defined]
    best = convloom.load(tmp_path / "best.safetensors").state_dict()
    assert best.keys() == straight.model.state_dict().keys()


def test_every_stop_of_many_is_survived(tmp_path: Path) -> None:
    straight = trainer()
    straight.fit(DATA, epochs=2)
    for step in range(1, 12, 2):
        part = trainer(tmp_path, callbacks=[StopAt(step, by_code)])
        with pytest.raises(TrainingInterrupted):
            part.fit(DATA, epochs=2, resume=step > 1)
    last = trainer(tmp_path)
    last.fit(DATA, epochs=2, resume=True)
    assert_same_end(last, straight)


def test_a_stop_during_validation_validates_again(tmp_path: Path) -> None:
    class StopInValidation(Callback):
        def on_validation(self, moment: Moment, done: int, total: int) -> None:
            if moment.progress.step == 6 and done < total:
                moment.trainer.stop()

    straight = trainer()
    straight.fit(DATA, epochs=2, validation=HELD_OUT)
    with pytest.raises(TrainingInterrupted, match=r"step 6 \(epoch 1 of 2, batch 6 of 6\)"):
        trainer(tmp_path, callbacks=[StopInValidation()]).fit(DATA, 2, HELD_OUT)
    resumed = trainer(tmp_path)
    resumed.fit(DATA, 2, HELD_OUT, resume=True)
    assert_same_end(resumed, straight)


def test_saves_within_an_epoch(tmp_path: Path, no_time: None) -> None:
    """A run that was killed goes on from the last save; the steps since then are made again."""
    saved: list[tuple[int, str]] = []

    class Watch(Callback):
        def on_checkpoint(self, moment: Moment, path: str) -> None:
            saved.append((moment.progress.step, Path(path).name))

        def on_step(self, moment: Moment) -> None:
            if moment.progress.step == 11:
                raise RuntimeError("killed")

    straight = trainer()
    straight.fit(DATA, epochs=2)
    with pytest.raises(RuntimeError, match="killed"):
        trainer(tmp_path, checkpoint_every=4, callbacks=[Watch()]).fit(DATA, epochs=2)
    last, best = checkpoint.LAST, checkpoint.BEST
    assert saved == [(4, last), (6, best), (6, last), (8, last)]
    resumed = trainer(tmp_path)
    resumed.fit(DATA, epochs=2, resume=True)
    assert len(resumed.engine.batches) == 4  # type: ignore[attr-defined]
    assert_same_end(resumed, straight)


def test_a_saved_network_can_take_the_models_place(tmp_path: Path) -> None:
    """``convloom resume`` has the checkpoint alone, not the code of the network."""
    straight = trainer()
    straight.fit(DATA, epochs=2)
    with pytest.raises(TrainingInterrupted):
        trainer(tmp_path, callbacks=[StopAt(9, by_code)]).fit(DATA, epochs=2)
    loaded = convloom.load(tmp_path / checkpoint.LAST)
    assert set(loaded.state_dict()) == set(straight.model.state_dict())
    assert loaded.classes == ("row 0", "row 1", "row 2")
    assert loaded.normalization == ((0.2, 0.2), (0.2, 0.2))
    resumed = trainer(tmp_path)
    resumed.model = loaded
    resumed.fit(DATA, epochs=2, resume=True)
    assert_same_end(resumed, straight)


def test_more_epochs_than_first_planned(tmp_path: Path) -> None:
    straight = trainer(schedule=None)
    straight.fit(DATA, epochs=3)
    trainer(tmp_path, schedule=None).fit(DATA, epochs=2)
    resumed = trainer(tmp_path, schedule=None)
    resumed.fit(DATA, epochs=3, resume=tmp_path)
    assert_same_end(resumed, straight)
    done = trainer(tmp_path, schedule=None)
    assert len(done.fit(DATA, epochs=3, resume=tmp_path / checkpoint.LAST)) == 3
    assert done.engine.batches == []  # type: ignore[attr-defined]
    with pytest.raises(ResumeError, match="ask for more"):
        trainer(tmp_path, schedule=None).fit(DATA, epochs=2, resume=True)


def test_a_second_fit_is_resumed_too(tmp_path: Path) -> None:
    def twice(out: Path | None, stop: list[Callback]) -> Trainer:
        made = trainer(out)
        made.fit(DATA, epochs=1)
        made.callbacks += stop
        return made

    straight = twice(None, [])
    straight.fit(DATA, epochs=2)
    with pytest.raises(TrainingInterrupted, match=r"step 8 \(epoch 1 of 2, batch 2 of 6\)"):
        twice(tmp_path, [StopAt(8, by_code)]).fit(DATA, epochs=2)
    resumed = trainer(tmp_path)
    resumed.fit(DATA, epochs=2, resume=True)
    assert_same_end(resumed, straight)


# Signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_says_how_to_resume(tmp_path: Path, number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    made = trainer(tmp_path, callbacks=[StopAt(3, by_signal(number))])
    with pytest.raises(KeyboardInterrupt) as stop:
        made.fit(DATA, epochs=2)
    assert isinstance(stop.value, TrainingInterrupted)
    assert stop.value.signal == number
    assert stop.value.checkpoint == str(tmp_path / checkpoint.LAST)
    assert str(stop.value) == (
        f"stopped after step 3 (epoch 1 of 2, batch 3 of 6); saved {tmp_path}/last.safetensors; "
        "resume with fit(…, epochs=2, resume=True)"
    )
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    state = checkpoint.load(tmp_path / checkpoint.LAST).state
    np.testing.assert_array_equal(state["0.weight"], made.model.state_dict()["0.weight"])


def test_a_run_folder_of_the_command_line_is_resumed_there(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    made = trainer(tmp_path, callbacks=[StopAt(3, by_code)])
    with pytest.raises(TrainingInterrupted, match=f"resume with convloom resume {tmp_path}"):
        made.fit(DATA, epochs=2)


def test_without_a_folder_nothing_is_saved_and_the_model_holds_the_weights() -> None:
    made = trainer(callbacks=[StopAt(3, by_signal(signal.SIGINT))])
    with pytest.raises(TrainingInterrupted, match=r"nothing was saved because .* out= folder"):
        made.fit(DATA, epochs=2)
    np.testing.assert_array_equal(
        made.model.state_dict()["0.weight"], made.engine.state()["0.weight"]
    )


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    class Twice(Callback):
        def on_step(self, moment: Moment) -> None:
            if moment.progress.step == 3:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0)  # handlers run between bytecodes
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0)
                pytest.fail("the second signal was not heard")

    with pytest.raises(KeyboardInterrupt) as stop:
        trainer(tmp_path, callbacks=[Twice()]).fit(DATA, epochs=2)
    assert not isinstance(stop.value, TrainingInterrupted)
    assert not (tmp_path / checkpoint.LAST).exists()
    assert signal.getsignal(signal.SIGINT) == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        made = trainer(callbacks=[StopAt(2, by_signal(signal.SIGINT))])
        assert len(made.fit(DATA, epochs=1)) == 1
    finally:
        signal.signal(signal.SIGINT, before)


# What must not be resumed.


def saved_run(folder: Path, **changes: Any) -> Path:
    trainer(folder, **changes).fit(DATA, epochs=1, validation=HELD_OUT)
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "seed was 3, it is 4"),
        ({"batch_size": 9}, "batch size was 8, it is 9"),
        ({"schedule": "cosine"}, "schedule was one-cycle:.*, it is cosine"),
        ({"augment": None}, "augment was Augmentation.*, it is None"),
        ({"clip_norm": 1.0}, "clip norm was None, it is 1.0"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "loss was CrossEntropyLoss"),
        ({"optimizer": optim.AdamW()}, "optimizer: kind SGD → AdamW"),
        (
            {"optimizer": optim.SGD(0.05, 0.8, nesterov=True, weight_decay=5e-4)},
            "optimizer: momentum 0.9 → 0.8",
        ),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    saved_run(tmp_path)
    with pytest.raises(ResumeError, match=message) as error:
        trainer(tmp_path, **changes).fit(DATA, 2, HELD_OUT, resume=True)
    assert str(error.value).startswith(str(tmp_path / checkpoint.LAST))


def test_other_data_are_refused(tmp_path: Path) -> None:
    saved_run(tmp_path)
    shorter = DATA.take(43)
    with pytest.raises(
        ResumeError, match=r"training set was rows \(44 samples, digest .*it is rows \(43 samples"
    ):
        trainer(tmp_path).fit(shorter, 2, HELD_OUT, resume=True)
    pixel = DATA.images.copy()
    pixel[3, 0, 0, 0] ^= 1
    with pytest.raises(ResumeError, match="the training set was rows"):
        trainer(tmp_path).fit(replace(DATA, images=pixel), 2, HELD_OUT, resume=True)
    with pytest.raises(ResumeError, match=r"the validation set was rows .* it is none"):
        trainer(tmp_path).fit(DATA, 2, resume=True)


def _like_small_network(channels: int = 4, padding: int = 1, *more: nn.Module) -> nn.Module:
    side = 2 + padding
    layers = [nn.Conv2d(2, channels, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    dense = nn.Linear(channels * side**2, 3)
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Flatten(), dense, *more)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(72, 3)),
            "it has Conv2d in layer 0 where .* Flatten",
        ),
        (_like_small_network(padding=0), r"layer 0, Conv2d: padding \[1, 1\] → \[0, 0\]\. Resume"),
        (_like_small_network(4, 1, nn.ReLU()), "only this one has a layer 6"),
        (_like_small_network(5), r"0.bias has shape \(4,\) there, \(5,\) here"),
    ],
)
def test_another_network_is_refused_and_told_apart(
    tmp_path: Path, other: nn.Module, message: str
) -> None:
    make_trainer(small_network(channels=2), out=tmp_path).fit(DATA, epochs=1)
    with pytest.raises(ResumeError, match=f"another network than the one to train: .*{message}"):
        make_trainer(other, out=tmp_path).fit(DATA, 2, resume=True)


def test_weights_alone_cannot_be_resumed(tmp_path: Path) -> None:
    saved_run(tmp_path)
    with pytest.raises(ResumeError, match=r"best\.safetensors cannot be resumed: it holds weights"):
        trainer().fit(DATA, 2, HELD_OUT, resume=tmp_path / checkpoint.BEST)


def test_other_kernels_are_told(tmp_path: Path) -> None:
    class Elsewhere(Recording):
        device = "elsewhere"

    saved_run(tmp_path)
    with pytest.warns(UserWarning, match="it was trained on interpreted, this is elsewhere"):
        trainer(tmp_path, engine=Elsewhere).fit(DATA, 2, HELD_OUT, resume=True)


def test_resume_needs_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="resume=True needs the Trainer's out= folder"):
        trainer().fit(DATA, 1, resume=True)
    with pytest.raises(CheckpointError, match=r"cannot read .*last\.safetensors"):
        trainer(tmp_path).fit(DATA, 1, resume=True)


# What must not be saved.


class Poisoned(Recording):
    """Its weights become infinite at the eighth step, though the loss is a number."""

    def train_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        result = super().train_step(images, targets)
        if len(self.batches) == 8:
            self.held["0.bias"][1] = np.inf
            return replace(result, loss=1.0)
        return result if len(self.batches) < 8 else replace(result, loss=1.0)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, no_time: None) -> None:
    made = trainer(tmp_path, engine=Poisoned)
    with pytest.raises(NonFiniteError, match=r"has become NaN or infinite at step 12"):
        made.fit(DATA, epochs=3)
    saved = checkpoint.load(tmp_path / checkpoint.LAST)
    assert saved.record["progress"]["step"] == 6
    assert all(np.isfinite(value).all() for value in saved.state.values())


class Explodes(Recording):
    def train_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        result = super().train_step(images, targets)
        return replace(result, loss=float("inf")) if len(self.batches) == 8 else result


def test_a_loss_that_is_not_finite_leaves_the_checkpoints_alone(tmp_path: Path) -> None:
    made = trainer(tmp_path, engine=Explodes)
    with pytest.raises(NonFiniteError, match=r"the loss is inf at step 8 .*last good weights"):
        made.fit(DATA, epochs=2)
    for name in (checkpoint.LAST, checkpoint.BEST):
        assert checkpoint.load(tmp_path / name).record["progress"]["step"] == 6


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    """A rate that grows without end spoils the later epochs."""
    made = trainer(tmp_path, schedule="step:every=1,gamma=40", clip_norm=1.0)
    history = made.fit(DATA, epochs=3, validation=HELD_OUT)
    best = history.best()
    assert best is not None
    assert best.epoch < 3
    loaded = convloom.load(tmp_path / checkpoint.BEST)
    record = checkpoint.load(tmp_path / checkpoint.BEST).record
    assert record["progress"]["epoch"] == best.epoch
    fresh = make_trainer(loaded, engine=Recording)
    assert fresh.evaluate(HELD_OUT)["loss"] == pytest.approx(best.val_loss, rel=1e-6)
