"""The Trainer's promises: every sample once, true means, and figures that are exact."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn, optim
from convloom.backends import get_backend
from convloom.data import Augmentation, from_arrays
from convloom.training import Callback, Moment, NonFiniteError, Trainer
from convloom.training.callbacks import one_by_one, watches_steps
from convloom.training.history import History
from convloom.training.loop import Loop
from convloom.training.protocols import StepResult, StepResults
from convloom.training.schedules import Constant, Rates, Span, as_schedule
from convloom.training.trainer import TrainerError
from tests.training.helpers import (
    InterpretedEngine,
    images_and_labels,
    make_trainer,
    small_network,
)


class Scripted(InterpretedEngine):
    """Says what it was told to say of each batch, in place of computing it."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.right: set[int] = set()

    def evaluate_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        numbers = images[:, 0, 0, 0].astype(int)
        right = sum(int(i) in self.right for i in numbers)
        return StepResult(float(numbers.mean()), right, right, len(images))


def numbered(count: int) -> Any:
    """Float images whose pixels are the sample's number."""
    images = np.zeros((count, 1, 6, 6), np.float32) + np.arange(count).reshape(-1, 1, 1, 1)
    return from_arrays(images, np.arange(count) % 3, classes=["a", "b", "c"])


def test_validation_must_be_as_the_crops_are() -> None:
    train = images_and_labels(20, size=8)
    made = make_trainer(augment=Augmentation(padding=0, size=6))
    assert made.shape_of(train) == (1, 6, 6)
    with pytest.raises(TrainerError, match=r"of 1×8×8, cropped to 1×6×6; they must be the"):
        made.fit(train, epochs=1, validation=images_and_labels(8, size=8))
    made.fit(train, epochs=1, validation=images_and_labels(8, size=6))
    assert made.model.input_shape == (1, 6, 6)


def test_evaluation_counts_every_sample_once() -> None:
    """Ten samples, batch 4, only the last two wrong: a mean of batch means would say 0.667."""
    trainer = make_trainer(batch_size=4, engine=Scripted)
    data = numbered(10)
    trainer.evaluate(data)
    trainer.engine.right = set(range(8))  # type: ignore[attr-defined]
    assert trainer.evaluate(data) == {"loss": 4.5, "accuracy": 0.8, "top5": 0.8, "n": 10}
    for batch_size in (1, 3, 10, 64):
        assert trainer.evaluate(data, batch_size=batch_size) == {
            "loss": pytest.approx(4.5),
            "accuracy": 0.8,
            "top5": 0.8,
            "n": 10,
        }


def plain_epoch(trainer: Any, data: Any, model: nn.Module, lr: float) -> dict[str, np.ndarray]:
    """An epoch of softmax regression with momentum 0.9, in plain NumPy and float64."""
    w, b = (value.astype(np.float64) for value in model.state_dict().values())
    velocity = [np.zeros_like(w), np.zeros_like(b)]
    order = data.batches(32, seed=trainer.seed, shuffle=True).order(0)
    x = data.normalise(data.images).reshape(len(data), -1).astype(np.float64)
    for start in range(0, len(data), 32):
        chosen = order[start : start + 32]
        logits = x[chosen] @ w.T + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(chosen)), data.labels[chosen]] -= 1
        p /= len(chosen)
        gradients = [p.T @ x[chosen], p.sum(0)]
        velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]
        w, b = w - lr * velocity[0], b - lr * velocity[1]
    return {"1.weight": w, "1.bias": b}


def test_a_short_last_batch_is_used_in_full_with_its_true_mean() -> None:
    """N = 100, batch 32: the last step divides by 4."""
    data = images_and_labels(100)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).initialize(1)
    trainer = make_trainer(
        model, batch_size=32, optimizer=optim.SGD(lr=0.1, momentum=0.9), schedule=None
    )
    expected = plain_epoch(trainer, data, model, 0.1)
    trainer.fit(data, epochs=1)
    assert trainer.engine.sizes == [32, 32, 32, 4]  # type: ignore[attr-defined]
    for name, value in expected.items():
        np.testing.assert_allclose(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_all_is_prepared_before_the_first_step() -> None:
    """Full batches and the short last one, of both data sets: so epochs time steps alone."""
    seen: list[list[tuple[str, int]]] = []

    class Watch(Callback):
        def on_step(self, moment: Moment) -> None:
            seen.append(list(moment.trainer.engine.prepared))  # type: ignore[attr-defined]

    trainer = make_trainer(callbacks=[Watch()], batch_size=32)
    trainer.fit(images_and_labels(100), epochs=2, validation=images_and_labels(20, seed=1))
    assert seen[0] == seen[-1] == [("train", 32), ("train", 4), ("evaluate", 20)]


@pytest.mark.parametrize("device,input", [("cpu", "auto"), ("cuda-sim", "resident")])
def test_nothing_is_bound_once_steps_run(
    device: str, input: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[str] = []

    class Watch(Callback):
        def on_step(self, moment: Moment) -> None:
            bound.append("step")

    backend = type(get_backend(device))
    bind = backend.executable

    def counted(self: Any, plan: Any, storage: Any) -> Any:
        bound.append("plan")
        return bind(self, plan, storage)

    monkeypatch.setattr(backend, "executable", counted)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    trainer = Trainer(
        *(model, optim.SGD(lr=0.1), nn.CrossEntropyLoss()),
        **{"batch_size": 8, "device": device, "input": input, "callbacks": [Watch()]},
    )
    trainer.fit(images_and_labels(20), epochs=2, validation=images_and_labels(11, seed=1))
    assert bound == ["plan"] * 4 + ["step"] * 6


def test_it_learns_and_keeps_a_table() -> None:
    data, held_out = images_and_labels(60), images_and_labels(20, seed=1)
    trainer = make_trainer(schedule="one-cycle:max=0.1")
    history = trainer.fit(data, epochs=4, validation=held_out)
    assert history is trainer.history
    assert history.column("epoch") == [1, 2, 3, 4]
    assert history.column("step") == [8, 16, 24, 32]
    assert history[-1].loss < history[0].loss / 2
    assert history[-1].val_accuracy == 1.0
    assert trainer.evaluate(held_out)["accuracy"] == 1.0
    assert trainer.evaluate(held_out)["loss"] == pytest.approx(history[-1].val_loss)
    assert [row.step for row in history.steps] == [5, 10, 15, 20, 25, 30]
    assert all(row.seconds > 0 and row.images_per_second > 0 for row in history)


def test_an_epochs_row_is_the_mean_over_its_samples() -> None:
    results: list[StepResult] = []

    class Watch(Callback):
        def on_step(self, moment: Moment) -> None:
            assert moment.result is not None
            results.append(moment.result)

    history = make_trainer(callbacks=[Watch()]).fit(images_and_labels(20), epochs=1)
    assert [result.n for result in results] == [8, 8, 4]
    assert history[0].loss == pytest.approx(sum(r.loss * r.n for r in results) / 20)
    assert history[0].accuracy == sum(r.correct for r in results) / 20


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")
def test_steps_are_told_together_or_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same figures and history either way, on a device that runs many steps at once."""
    monkeypatch.setattr("convloom.training.pace._PATIENCE", 1e6)  # the simulator is slow
    together: list[tuple[int, int]] = []
    losses: dict[str, list[float]] = {"together": [], "alone": []}

    class Together(Callback):
        may_lag = True

        def on_steps(self, moment: Moment, results: StepResults) -> None:
            together.append((moment.progress.step, len(results)))
            losses["together"] += results.losses
            assert moment.result == results[-1]

    class Alone(Callback):
        may_lag = True

        def on_step(self, moment: Moment) -> None:
            assert moment.result is not None
            losses["alone"].append(moment.result.loss)
            assert moment.progress.step == len(losses["alone"])

    histories = []
    for callback in (Together(), Alone()):
        trainer = Trainer(
            *(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), optim.SGD(lr=0.1)),
            nn.CrossEntropyLoss(),
            **{"batch_size": 8, "device": "cuda-sim", "input": "resident", "log_every": 3},
            callbacks=[callback],
        )
        histories.append(trainer.fit(images_and_labels(203), epochs=2))
    steps = [number for number, _ in together]
    assert max(count for _, count in together) > 3
    assert steps == list(np.cumsum([count for _, count in together]))
    assert steps[-1] == 2 * 26
    assert losses["together"] == losses["alone"]
    one, other = (history.steps for history in histories)
    assert [row.step for row in one] == list(range(3, 52, 3))
    assert one == other
    assert histories[0].column("loss") == histories[1].column("loss")


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")
def test_steps_before_one_that_is_not_finite_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convloom.training.pace._PATIENCE", 1e6)
    images = np.random.default_rng(0).normal(size=(120, 1, 6, 6)).astype(np.float32)
    images[77] = np.nan  # in batch 10 of 15
    told: list[float] = []

    class Watcher(Callback):
        may_lag = True

        def on_steps(self, moment: Moment, results: StepResults) -> None:
            told.extend(results.losses)
            assert moment.progress.step == len(told)

    trainer = Trainer(
        *(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), optim.SGD(lr=0.1)),
        nn.CrossEntropyLoss(),
        **{"batch_size": 8, "device": "cuda-sim", "input": "resident", "shuffle": False},
        callbacks=[Watcher()],
    )
    data = from_arrays(images, np.arange(120) % 3, classes=["a", "b", "c"])
    with pytest.raises(NonFiniteError, match="the loss is nan at step 10 "):
        trainer.fit(data, epochs=1)
    assert len(told) == 9
    assert np.isfinite(told).all()


def test_a_watchers_own_attribute_is_told_of_every_step() -> None:
    watcher, plain = Callback(), Callback()
    watcher.on_step = lambda moment: None  # type: ignore[method-assign]
    for ask in (one_by_one, watches_steps):
        assert ask([plain, watcher])
        assert not ask([plain])


def test_a_schedule_changed_between_epochs_counts_from_its_first_step() -> None:
    """Though it begins and ends the epoch as the one before does."""

    class Peak(Constant):
        def rates(self, step: int, span: Span, lr: float) -> Rates:
            return Rates(lr * (1 + (step % 3 == 1)))

    class Change(Callback):
        def on_epoch(self, moment: Moment) -> None:
            moment.trainer.schedule = Peak()

    trainer = make_trainer(schedule="constant", batch_size=10, callbacks=[Change()])
    trainer.fit(images_and_labels(30), epochs=2)
    log = trainer.engine.hyper_log  # type: ignore[attr-defined]
    assert [values["lr"] for values in log] == [0.05, 0.05, 0.05, 0.05, 0.1, 0.05]


def test_rates_of_each_step_follow_the_schedule() -> None:
    trainer = make_trainer(schedule="step:every=1,gamma=0.1", batch_size=10)
    trainer.fit(images_and_labels(20), epochs=2)
    log = trainer.engine.hyper_log  # type: ignore[attr-defined]
    assert [row["lr"] for row in log] == pytest.approx([0.05, 0.05, 0.005, 0.005])
    assert {row["momentum"] for row in log} == {0.9}


def test_adamw_gets_its_bias_corrections() -> None:
    trainer = make_trainer(optimizer=optim.AdamW(lr=0.01), batch_size=10)
    trainer.fit(images_and_labels(20), epochs=1)
    trainer.fit(images_and_labels(20), epochs=1)
    log = trainer.engine.hyper_log  # type: ignore[attr-defined]
    assert [row["bias1"] for row in log] == pytest.approx([1 - 0.9**t for t in (1, 2, 3, 4)])


def test_gradients_are_clipped() -> None:
    moved = []
    for norm in (None, 1e-3):
        model = small_network().initialize(0)
        before = model.state_dict()
        trainer = make_trainer(model, clip_norm=norm, optimizer=optim.SGD(lr=1.0), batch_size=20)
        trainer.fit(images_and_labels(20), epochs=1)
        after = model.state_dict()
        square = sum(float(((after[name] - before[name]) ** 2).sum()) for name in before)
        moved.append(math.sqrt(square))
    assert moved[0] > 0.1
    assert moved[1] == pytest.approx(1e-3, rel=1e-3)


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    def weights(seed: int) -> dict[str, np.ndarray]:
        trainer = make_trainer(seed=seed, augment=Augmentation(padding=1))
        trainer.fit(images_and_labels(30), epochs=2)
        return trainer.model.state_dict()

    first, second, other = weights(0), weights(0), weights(1)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
        assert not np.array_equal(value, other[name])


def test_the_model_is_told_what_it_was_trained_on() -> None:
    trainer = make_trainer()
    data = images_and_labels(16)
    trainer.fit(data, epochs=1)
    assert trainer.model.classes == ("row 0", "row 1", "row 2")
    assert trainer.model.input_shape == (1, 6, 6)
    assert trainer.model.normalization == ((0.2,), (0.2,))


def test_a_mean_image_is_a_part_of_the_normalisation(tmp_path: Path) -> None:
    """Known to the model, its file and its predictions; asked of every set it is tested on."""
    data = images_and_labels(16)
    centred, other = data.centred(), data.take(9).centred()
    trainer = make_trainer(optimizer=optim.SGD(lr=1e-6))
    trainer.fit(centred, epochs=1, validation=data.take(5).centred(centred))
    assert trainer.model.mean_image is not None
    np.testing.assert_array_equal(trainer.model.mean_image, centred.mean_image)
    trainer.model.save(tmp_path / "net")
    for model in (trainer.model, cl.load(tmp_path / "net")):
        np.testing.assert_array_equal(
            model.predict(data.images, device="cpu"),
            model.predict(centred.normalise(data.images), device="cpu"),
        )
    for wrong in (other, replace(centred, mean_image=None)):
        with pytest.raises(TrainerError, match="not normalised by the network's mean image"):
            trainer.evaluate(replace(wrong, mean=centred.mean))
        with pytest.raises(TrainerError, match="not normalised by the network's mean image"):
            make_trainer().fit(centred, 1, replace(wrong, mean=centred.mean))
    trainer.fit(data, epochs=1)
    assert trainer.model.mean_image is None


def test_fit_again_trains_on() -> None:
    data = images_and_labels(24)
    trainer = make_trainer(batch_size=8)
    trainer.fit(data, epochs=1)
    state = trainer.engine.state()
    history = trainer.fit(data, epochs=2)
    assert history.column("epoch") == [1, 2, 3]
    assert history.column("step") == [3, 6, 9]
    assert trainer.engine.state()["counter"].tolist() == [3, 9]
    assert not np.array_equal(trainer.engine.state()["0.weight"], state["0.weight"])


def test_weights_given_to_the_model_between_two_fits_are_used() -> None:
    data = images_and_labels(16)
    trainer = make_trainer(optimizer=optim.SGD(lr=0.0))
    trainer.fit(data, epochs=1)
    changed = {name: value + 1 for name, value in trainer.model.state_dict().items()}
    trainer.model.load_state_dict(changed)
    trainer.fit(data, epochs=1)
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_array_equal(value, changed[name])


def test_a_watcher_that_takes_the_weights_elsewhere_does_not_hold_them_back() -> None:
    """predict makes an engine of its own, to which the model is bound from then on."""

    class Elsewhere(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.trainer.model.release()

    data = images_and_labels(16)
    plain, watched = make_trainer(), make_trainer(callbacks=[Elsewhere()])
    plain.fit(data, epochs=2)
    watched.fit(data, epochs=2)
    for name, value in plain.model.state_dict().items():
        np.testing.assert_array_equal(watched.model.state_dict()[name], value)


def test_callbacks_hear_everything_in_order() -> None:
    heard: list[str] = []

    class Watch(Callback):
        def on_start(self, moment: Moment) -> None:
            heard.append(f"start {moment.progress.total_steps}")

        def on_step(self, moment: Moment) -> None:
            heard.append(f"step {moment.progress.step}")

        def on_validation(self, moment: Moment, done: int, total: int) -> None:
            heard.append(f"validation {done}/{total}")

        def on_epoch(self, moment: Moment) -> None:
            assert moment.row is moment.history[-1]
            heard.append(f"epoch {moment.progress.epoch}")

        def on_end(self, moment: Moment) -> None:
            heard.append("end")

    class OnlySteps:
        steps = 0

        def on_step(self, moment: Moment) -> None:
            self.steps += 1

    counter = OnlySteps()
    trainer = make_trainer(callbacks=[Watch(), counter])
    trainer.fit(images_and_labels(10), epochs=1, validation=images_and_labels(9, seed=1))
    assert heard == [
        "start 2",
        "step 1",
        "step 2",
        "validation 8/9",
        "validation 9/9",
        "epoch 1",
        "end",
    ]
    assert counter.steps == 2


def test_what_a_callback_raises_ends_training_and_the_end_is_told() -> None:
    ended: list[int] = []

    class Fails(Callback):
        def on_step(self, moment: Moment) -> None:
            raise RuntimeError("no more")

        def on_end(self, moment: Moment) -> None:
            ended.append(moment.progress.step)

    trainer = make_trainer(callbacks=[Fails()])
    with pytest.raises(RuntimeError, match="no more"):
        trainer.fit(images_and_labels(16), epochs=1)
    assert ended == [1]
    assert trainer.steps_done == 1


class Explodes(InterpretedEngine):
    """Its loss is NaN at the third step."""

    def train_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        result = super().train_step(images, targets)
        return StepResult(math.nan, 0, 0, result.n) if len(self.sizes) == 3 else result


def test_a_loss_that_is_not_finite_names_the_step() -> None:
    trainer = make_trainer(engine=Explodes)
    with pytest.raises(
        NonFiniteError,
        match=r"the loss is nan at step 3 \(epoch 2 of 2, batch 1 of 2\), learning rate 0\.05",
    ) as error:
        trainer.fit(images_and_labels(16), epochs=2)
    assert error.value.step == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number, 1 or more: 0"),
        ({"batch_size": 1.5}, "batch_size must be"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**64}, "seed must be"),
        ({"model": nn.Sequential}, "the model must be an nn.Module"),
        ({"model": lambda: nn.Sequential()}, "the model must be an nn.Module"),
        ({"loss": nn.CrossEntropyLoss}, "the loss must be"),
        ({"optimizer": "sgd"}, "the optimizer must be"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"clip_norm": math.nan}, "clip_norm must be above 0"),
        ({"checkpoint_every": -1}, "checkpoint_every must be"),
        ({"schedule": "cosin"}, "unknown schedule"),
    ],
)
def test_bad_settings_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(**changes)


def test_bad_calls_are_errors() -> None:
    trainer, data = make_trainer(), images_and_labels(8)
    with pytest.raises(TrainerError, match="epochs must be a whole number, 1 or more: 0"):
        trainer.fit(data, epochs=0)
    with pytest.raises(TrainerError, match=r"train needs a data set such as .* not tuple"):
        trainer.fit((data.images, data.labels), epochs=1)  # type: ignore[arg-type]
    with pytest.raises(TrainerError, match=r"train needs a data set such as .* not NoneType"):
        trainer.fit(None, epochs=1)  # type: ignore[arg-type]
    with pytest.raises(TrainerError, match="evaluate: the data set rows has no samples"):
        trainer.evaluate(data.take(0))
    with pytest.raises(TrainerError, match="nothing has run yet"):
        _ = make_trainer().engine
    with pytest.raises(TrainerError, match=r"validation has images of 1×8×8, .* of 1×6×6"):
        trainer.fit(data, epochs=1, validation=images_and_labels(8, size=8))
    with pytest.raises(TrainerError, match="validation has 4 classes, the training set 3"):
        trainer.fit(data, epochs=1, validation=images_and_labels(8, classes=4))
    trainer.fit(data, epochs=1)
    with pytest.raises(TrainerError, match="works on images of 1×6×6, the data set has 1×8×8"):
        trainer.evaluate(images_and_labels(8, size=8))


def test_data_normalised_otherwise_are_refused() -> None:
    trainer, data = make_trainer(), images_and_labels(8)
    other = from_arrays(data.images, data.labels, classes=data.classes, name="other")
    with pytest.raises(TrainerError, match=r"other is normalised by mean .* mean \(0\.2\)"):
        trainer.fit(data, epochs=1, validation=other)
    trainer.fit(data, epochs=1)
    with pytest.raises(TrainerError, match="make the data set with the training set's mean"):
        trainer.evaluate(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: setattr(t, "optimizer", optim.AdamW(lr=0.001)), "the optimizer's rule"),
        (lambda t: setattr(t, "loss", nn.CrossEntropyLoss(label_smoothing=0.1)), "the loss"),
        (lambda t: setattr(t, "seed", 4), "seed"),
        (lambda t: setattr(t, "clip_norm", 1.0), "the loss or the optimizer's rule|clip_norm"),
        (lambda t: setattr(t.model, "1", nn.Identity()), "the network"),
    ],
)
def test_what_is_compiled_cannot_be_changed_unnoticed(change: Any, message: str) -> None:
    trainer, data = make_trainer(), images_and_labels(8)
    trainer.fit(data, epochs=1)
    change(trainer)
    for call in (lambda: trainer.fit(data, epochs=1), lambda: trainer.evaluate(data)):
        with pytest.raises(TrainerError, match=f"({message}).* changed since .* new Trainer"):
            call()


def test_rates_and_batch_size_may_change_between_fits() -> None:
    trainer, data = make_trainer(), images_and_labels(8)
    trainer.fit(data, epochs=1)
    trainer.optimizer = optim.SGD(lr=0.0, momentum=0.9, nesterov=True, weight_decay=0.0)
    trainer.schedule, trainer.batch_size = as_schedule("constant"), 4
    before = trainer.model.state_dict()
    trainer.fit(data, epochs=1)
    assert trainer.steps_done == 3
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_fit_in_fit_is_refused() -> None:
    class Nested(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.trainer.fit(images_and_labels(8), epochs=1)

    with pytest.raises(TrainerError, match="fit is running already"):
        make_trainer(callbacks=[Nested()]).fit(images_and_labels(8), epochs=1)


def test_a_callback_may_evaluate() -> None:
    seen: list[float] = []
    held_out = images_and_labels(8, seed=1)

    class Evaluates(Callback):
        def on_epoch(self, moment: Moment) -> None:
            seen.append(moment.trainer.evaluate(held_out)["loss"])

    history = make_trainer(callbacks=[Evaluates()]).fit(
        images_and_labels(16), epochs=2, validation=held_out
    )
    assert seen == pytest.approx(history.column("val_loss"))


def test_a_new_loop_starts_where_the_trainer_stands() -> None:
    trainer, data = make_trainer(), images_and_labels(16)
    trainer.fit(data, epochs=2)
    loop = Loop(trainer, data, None, 3)
    assert (loop.progress.epoch, loop.progress.step, loop.progress.total_steps) == (2, 4, 6)
    assert isinstance(loop.history, History)
    assert loop.history is not trainer.history


def test_rates_changed_between_epochs_hold_from_then_on() -> None:
    """The next epoch's rates are made ahead; whoever changes them is heard all the same."""

    class Slower(Callback):
        def on_epoch(self, moment: Moment) -> None:
            trainer = moment.trainer
            trainer.optimizer = replace(trainer.optimizer, lr=trainer.optimizer.lr / 2)

    made = make_trainer(optimizer=optim.SGD(lr=0.08), callbacks=[Slower()])
    history = made.fit(images_and_labels(20), epochs=3)
    assert history.column("lr") == [0.08, 0.04, 0.02]
