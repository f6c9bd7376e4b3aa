"""Members that train together: each has the bits and the history of a run of its own."""

from __future__ import annotations

import logging
import shutil
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends.base import get_backend
from convloom.backends.cuda.onchip.config import ALONE, using
from convloom.backends.cuda.together import MemberMemory
from convloom.compiler import compile_graph
from convloom.data import Augmentation
from convloom.nn.models import lenet
from convloom.training import Ensemble, TrainingInterrupted, together
from convloom.training.ensemble import ManyError
from convloom.training.graphs import INDEX, training_graph
from convloom.training.many import each_member
from tests.training.helpers import images_and_labels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")

TRAIN, TEST = images_and_labels(20), images_and_labels(9, seed=1)
SGD = cl.optim.SGD(lr=0.05, momentum=0.9)
CONFIGS: list[dict[str, Any]] = [
    {"lr": 0.1, "seed": 1},
    {"momentum": 0.5, "weight_decay": 0.01},
    {"lr": 1e30},  # diverges
    {"seed": 3, "schedule": "one-cycle:max=0.1"},
]
SHARED: dict[str, Any] = {
    **{"batch_size": 8, "device": "cuda-sim", "precision": "bf16", "log_every": 2},
    "augment": Augmentation(padding=1),
}
LOSS = nn.CrossEntropyLoss()


def network(width: int = 4) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(4 * width, 8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 3)),
    )


def trained(configs: Sequence[dict[str, Any]], **changes: Any) -> Ensemble:
    given: dict[str, Any] = {
        **{"model": network, "optimizer": SGD, "loss": LOSS, "epochs": 2, "validation": TEST},
        **SHARED,
        **changes,
    }
    return cl.train_many(configs, given.pop("train", TRAIN), **given)


def check_alone(ensemble: Ensemble, configs: Sequence[dict[str, Any]], **changes: Any) -> None:
    """Each member is what a Trainer makes alone, if a block carries an image as it does there."""
    for member, config in zip(ensemble, configs, strict=True):
        rates = {key: value for key, value in config.items() if key not in ("seed", "schedule")}
        own = {key: value for key, value in config.items() if key in ("seed", "schedule")}
        optimizer = cl.optim.SGD(**{"lr": 0.05, "momentum": 0.9, **rates})
        given = {"model": network, "train": TRAIN, "epochs": 2, "validation": TEST, **changes}
        model, *rest = (given.pop(key) for key in ("model", "train", "epochs", "validation"))
        alone = model()
        trainer = cl.Trainer(alone, optimizer, LOSS, **{**SHARED, **given, **own})
        error = None
        try:
            with using(ALONE):
                trainer.fit(*rest)
        except cl.training.NonFiniteError as diverged:  # type: ignore[attr-defined]
            error = str(diverged)
        assert (str(member.error) if member.error else None) == error
        assert member.history.steps == trainer.history.steps
        for column in ("epoch", "step", "lr", "loss", "accuracy", "val_loss", "val_accuracy"):
            assert member.history.column(column) == trainer.history.column(column)
        if error is None:
            ours, theirs = member.model.state_dict(), alone.state_dict()
            for name, value in theirs.items():
                assert ours[name].tobytes() == value.tobytes(), name


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "convloom"):
        yield caplog


def test_members_are_what_they_are_alone_and_one_that_diverges_harms_none(
    told: pytest.LogCaptureFixture,
) -> None:
    ensemble = trained(CONFIGS)
    assert "4 members train together, two launches a step for all" in told.text
    assert "epoch 1 of 2: 3 members, validation accuracy" in told.text
    check_alone(ensemble, CONFIGS)
    lost = ensemble.members[2]
    assert lost.error is not None
    assert ensemble.ranked[-1] is lost
    assert np.isfinite(ensemble.predict(TEST.images)).all()
    assert "lr=1e+30 (diverged at step" in str(ensemble).splitlines()[-1]
    document = ensemble.to_json()
    assert document["members"][2]["val_accuracy"] is None
    assert "the loss is" in document["members"][2]["error"]
    assert [group["diverged"] for group in document["groups"]].count(1) == 1
    assert document["groups"][-1]["mean"] is None


def test_members_that_do_not_fit_at_once_take_turns(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five in groups of two or less; the memory of each group is free for the next."""
    memories: list[weakref.ref[object]] = []
    plain = MemberMemory.__init__

    def noted(self: MemberMemory, *given: Any) -> None:
        assert all(memory() is None for memory in memories)
        plain(self, *given)
        memories.append(weakref.ref(self._slabs))

    monkeypatch.setattr(MemberMemory, "__init__", noted)
    way = together.way_for

    def smaller(*given: Any) -> together.Way:
        return together.replace(way(*given), most=2)

    monkeypatch.setattr("convloom.training.many.way_for", smaller)
    configs = [{"seed": seed} for seed in range(5)]
    ensemble = trained(configs, epochs=1)
    assert len(memories) == 3
    assert "5 members train 2 at a time, two launches a step for all of those" in told.text
    check_alone(ensemble, configs, epochs=1)


def test_each_kind_of_network_is_a_group_of_its_own(told: pytest.LogCaptureFixture) -> None:
    widths = iter((4, 5, 4, 5, 6))
    configs = [{"seed": seed} for seed in range(5)]
    members = each_member(
        *(configs, TRAIN),
        **{"model": lambda: network(next(widths)), "optimizer": SGD, "loss": LOSS, "epochs": 1},
        **SHARED,
    )
    found = [(dict(m.config), m.model.state_dict()["0.weight"].shape[0]) for m in members]
    assert found == list(zip(configs, (4, 5, 4, 5, 6), strict=True))
    assert told.text.count("2 members train together") == 2
    assert "members that train apart: 1, because it is the only one of its kind" in told.text


def test_members_that_stream_train_apart_and_have_the_same_bits(
    told: pytest.LogCaptureFixture,
) -> None:
    configs = CONFIGS[:3]
    with using(ALONE):
        apart = trained(configs, input="stream", epochs=1)
    assert "members that train apart: 3, because input 'stream'" in told.text
    for ours, theirs in zip(trained(configs, epochs=1), apart, strict=True):
        assert str(ours.error) == str(theirs.error)
        for name, value in theirs.model.state_dict().items():
            if theirs.error is None:
                assert ours.model.state_dict()[name].tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kernels": "sparse"}, "only a step that runs on chip as a whole"),
        ({"clip_norm": 1.0}, "only a step that runs on chip as a whole"),
        ({"augment": Augmentation(size=4)}, "crops of another size"),
    ],
)
def test_what_keeps_members_apart(changes: dict[str, Any], reason: str) -> None:
    def make(**engine: Any) -> cl.Trainer:
        size = 4 if "augment" in changes else 6
        body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * (size - 2) ** 2, 3))
        return cl.Trainer(body, SGD, LOSS, **{**SHARED, **changes, **engine})

    with pytest.raises(together.ApartError, match=reason):
        together.way_for(make, TRAIN, None)


def test_too_little_memory_keeps_members_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from convloom.backends.cudasim.gpu import SimulatedGpu

    def make(**engine: Any) -> cl.Trainer:
        return cl.Trainer(network(), SGD, LOSS, **{**SHARED, **engine})

    monkeypatch.setattr(SimulatedGpu, "free_bytes", lambda self: 20_000)
    with pytest.raises(together.ApartError, match="which is short"):
        together.way_for(make, TRAIN, TEST)
    monkeypatch.setattr(SimulatedGpu, "free_bytes", lambda self: 500)
    with pytest.raises(together.ApartError, match="the data takes 720B of memory"):
        together.way_for(make, TRAIN, TEST)


def test_batch_files_are_cut_as_alone() -> None:
    """Batches of several sizes, in turns."""
    configs = CONFIGS[:2]
    changes: dict[str, Any] = {"batch_files": (11, 9), "augment": None}
    check_alone(trained(configs, **changes), configs, **changes)


def test_members_cannot_share_a_network() -> None:
    one = network()
    with pytest.raises(ManyError, match="model gave one network twice"):
        trained(CONFIGS[:2], model=lambda: one)


def test_a_stop_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop:
        def __enter__(self) -> Stop:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        looks = 0

        @property
        def asked(self) -> int | None:
            Stop.looks += 1
            return 2 if Stop.looks > 3 else None

    monkeypatch.setattr(together, "StopRequest", Stop)
    with pytest.raises(TrainingInterrupted, match=r"stopped after step .* none of these is"):
        trained(CONFIGS[:2])


def test_all_may_diverge() -> None:
    ensemble = trained([{"lr": 1e30}, {"lr": 1e30, "seed": 1}], epochs=50)
    assert len(ensemble) == 2
    with pytest.raises(ManyError, match="all 2 members diverged; the first: the loss is"):
        ensemble.predict(TEST.images)
    with pytest.raises(ManyError, match="all 2 members diverged"):
        assert ensemble.best
    document = ensemble.to_json()
    assert (document["best"], document["groups"][0]["diverged"]) == (None, 2)
    assert document["groups"][0]["mean"] is None


def test_plans_show_which_members_can_train_together() -> None:
    shown = {}
    for name, loss, clip in (("whole", SGD, False), ("clipped", SGD, True)):
        graph = training_graph(network().trace((1, 6, 6), 8), LOSS, INDEX, loss, clip)
        shown[name] = str(compile_graph(graph, get_backend("cuda-sim"), precision="bf16"))
    line = "members of cl.train_many and convloom sweep: two launches a step for all"
    assert line in shown["whole"]
    assert line not in shown["clipped"]


@pytest.mark.gpu
def test_members_on_a_gpu(told: pytest.LogCaptureFixture) -> None:
    """Some of many, against runs of their own."""
    train, test = cl.data.load("digits")
    configs = [{"seed": seed, "lr": 0.01 * (1 + seed % 3)} for seed in range(40)]
    changes: dict[str, Any] = {
        **{"train": train, "validation": test, "epochs": 5, "device": "cuda", "batch_size": 64},
        "model": lambda: lenet(num_classes=10, in_channels=1, image_size=train.shape[1:]),
    }
    ensemble = trained(configs, **changes)
    assert "40 members train together" in told.text
    some = slice(None, None, 9)
    check_alone(Ensemble(ensemble.members[some]), configs[some], **changes)
    assert min(member.last.val_accuracy or 0.0 for member in ensemble) > 0.6
