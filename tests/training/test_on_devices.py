"""Training with the real engine: the cases that the interpreted one shows, on each device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.data import Augmentation
from convloom.training import Callback, Moment, TrainingInterrupted, checkpoint
from convloom.training.engine import Engine
from tests.training.helpers import images_and_labels, make_trainer, small_network

DEVICES = ["reference", "cpu"]


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, moment: Moment) -> None:
        if moment.progress.step == self.step:
            moment.trainer.stop()


def trainer(device: str, out: Path | None = None, **changes: Any) -> cl.Trainer:
    settings: dict[str, Any] = {
        "schedule": "one-cycle:max=0.1",
        "augment": Augmentation(padding=1),
        "clip_norm": 1.0,
        "engine": Engine,
        "device": device,
        "out": out,
        **changes,
    }
    return make_trainer(small_network(channels=2), **settings)


@pytest.mark.parametrize("optimizer", [None, cl.optim.AdamW(lr=0.01)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_is_the_same_bits(
    tmp_path: Path, device: str, optimizer: cl.optim.Optimizer | None
) -> None:
    data, held_out = images_and_labels(44, channels=2), images_and_labels(20, channels=2, seed=1)
    changes = {} if optimizer is None else {"optimizer": optimizer}
    straight = trainer(device, **changes)
    straight.fit(data, epochs=2, validation=held_out)
    with pytest.raises(TrainingInterrupted):
        trainer(device, tmp_path, callbacks=[StopAt(8)], **changes).fit(data, 2, held_out)
    resumed = trainer(device, tmp_path, **changes)
    resumed.model = cl.load(tmp_path / checkpoint.LAST)
    resumed.fit(data, 2, held_out, resume=True)
    ours, theirs = resumed.engine.state(), straight.engine.state()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    assert resumed.history.column("val_loss") == straight.history.column("val_loss")
    assert resumed.history.column("loss") == straight.history.column("loss")


@pytest.mark.parametrize("device", DEVICES)
def test_a_short_last_batch_counts_by_its_samples(device: str) -> None:
    """N = 100, batch 32, against the interpreted references."""
    data = images_and_labels(100)
    weights = []
    for engine in ({"engine": Engine, "device": device}, {}):
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).initialize(1)
        made = make_trainer(model, batch_size=32, **engine)  # type: ignore[arg-type]
        made.fit(data, epochs=2)
        weights.append(model.state_dict())
    for name, value in weights[1].items():
        np.testing.assert_allclose(weights[0][name], value, rtol=1e-5, atol=1e-6)


def test_the_kernels_agree_with_the_references_over_a_run() -> None:
    """A few steps of everything: dropout's masks are the same on every device."""
    data = images_and_labels(40, channels=2)
    ends = []
    for device in DEVICES:
        made = trainer(device)
        made.fit(data, epochs=1)
        ends.append(made.engine.state())
    for name, value in ends[0].items():
        np.testing.assert_allclose(ends[1][name], value, rtol=2e-4, atol=2e-5, err_msg=name)


def test_digits_are_learnt_saved_loaded_and_predicted(tmp_path: Path) -> None:
    """The whole way that a person goes, on the data set that the package ships."""
    train, test = cl.data.load("digits")
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    )
    made = cl.Trainer(
        model,
        optimizer=cl.optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
        loss=nn.CrossEntropyLoss(),
        batch_size=32,
        schedule="one-cycle",
        seed=0,
        out=tmp_path / "run",
    )
    history = made.fit(train, epochs=4, validation=test)
    figures = made.evaluate(test)
    assert figures["n"] == len(test)
    assert figures["accuracy"] > 0.9
    assert figures["top5"] >= figures["accuracy"]
    assert history[-1].val_accuracy == figures["accuracy"]
    model.save(tmp_path / "net.safetensors")
    loaded = cl.load(tmp_path / "net.safetensors")
    probabilities = loaded.predict(test.images)
    assert probabilities.shape == (len(test), 10)
    assert float((probabilities.argmax(1) == test.labels).mean()) == figures["accuracy"]
    np.testing.assert_array_equal(made.predict(test.images), probabilities)
    best = cl.load(tmp_path / "run" / "best.safetensors").predict(test.images)
    row = history.best()
    assert row is not None
    assert float((best.argmax(1) == test.labels).mean()) == row.val_accuracy


def test_a_label_out_of_range_names_the_sample_and_nothing_runs() -> None:
    made = trainer("cpu", augment=None)
    data = images_and_labels(16, channels=2)
    made.fit(data, epochs=1)
    before = made.engine.state()
    images = data.normalise(data.images)
    for wrong in (-1, 3):
        labels = data.labels.copy()
        labels[5] = wrong
        with pytest.raises(cl.ConvloomError, match="5"):
            made.engine.train_step(images, labels)
    for name, value in before.items():
        np.testing.assert_array_equal(made.engine.state()[name], value)


def test_predicting_between_and_during_training_disturbs_nothing() -> None:
    data = images_and_labels(16, channels=2)

    class Predicts(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.trainer.model.predict(data.images[:2])

    plain, watched = trainer("cpu"), trainer("cpu", callbacks=[Predicts()])
    plain.fit(data, epochs=1)
    watched.fit(data, epochs=1)
    watched.model.predict(data.images[:3])
    plain.fit(data, epochs=1)
    watched.fit(data, epochs=1)
    for name, value in plain.model.state_dict().items():
        np.testing.assert_array_equal(watched.model.state_dict()[name], value)


def test_weights_stay_with_the_model_when_the_trainer_goes() -> None:
    made = trainer("cpu")
    made.fit(images_and_labels(16, channels=2), epochs=1)
    model, before = made.model, made.model.state_dict()
    del made
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
