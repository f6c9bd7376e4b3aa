"""Many members: the bits of single runs, their table, their best and their average."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.training import Ensemble, History, Member, many
from convloom.training.engine import Engine
from convloom.training.ensemble import ManyError
from convloom.training.history import EpochRow
from convloom.training.many import each_member
from tests.training.helpers import images_and_labels, small_network

TRAIN, TEST = images_and_labels(28), images_and_labels(12, seed=1)
SGD = cl.optim.SGD(lr=0.05, momentum=0.9)
CONFIGS: list[dict[str, Any]] = [
    {"lr": 0.1, "seed": 1},
    {"momentum": 0.5, "weight_decay": 0.01},
    {"seed": 3, "schedule": "one-cycle:max=0.1"},
]
SHARED: dict[str, Any] = {"batch_size": 8, "device": "reference", "clip_norm": 2.0}


def trained(configs: list[dict[str, Any]], **changes: Any) -> Ensemble:
    given: dict[str, Any] = {
        "model": small_network,
        "optimizer": SGD,
        "loss": nn.CrossEntropyLoss(),
        "epochs": 2,
        "validation": TEST,
        **SHARED,
        **changes,
    }
    return cl.train_many(configs, TRAIN, **given)


def test_each_member_has_the_bits_of_a_run_of_its_own() -> None:
    ensemble = trained(CONFIGS)
    alone = [
        (cl.optim.SGD(lr=0.1, momentum=0.9), {"seed": 1}),
        (cl.optim.SGD(lr=0.05, momentum=0.5, weight_decay=0.01), {}),
        (SGD, {"seed": 3, "schedule": "one-cycle:max=0.1"}),
    ]
    for member, (optimizer, own) in zip(ensemble, alone, strict=True):
        model = small_network()
        trainer = cl.Trainer(model, optimizer, nn.CrossEntropyLoss(), **SHARED, **own)
        history = trainer.fit(TRAIN, 2, TEST)
        assert member.history.column("loss") == history.column("loss")
        assert member.history.column("val_loss") == history.column("val_loss")
        for name, value in model.state_dict().items():
            assert member.model.state_dict()[name].tobytes() == value.tobytes(), name


def test_the_prediction_is_the_mean_of_all_members() -> None:
    ensemble = trained(CONFIGS)
    images = TEST.images
    single = [member.model.predict(images, device="reference") for member in ensemble]
    mean = np.mean(np.array(single, np.float64), axis=0)
    np.testing.assert_allclose(ensemble.predict(images), mean, rtol=1e-6)
    assert ensemble.predict(images[:0]).shape == (0, 3)
    figures = ensemble.evaluate(TEST, batch_size=5)
    assert figures["n"] == len(TEST)
    assert figures["accuracy"] == (mean.argmax(1) == TEST.labels).mean()
    loss = -np.log(mean[np.arange(len(TEST)), TEST.labels]).mean()
    assert figures["loss"] == pytest.approx(loss, rel=1e-5)


def test_adamw_members_change_their_betas() -> None:
    ensemble = trained(
        [{"betas": (0.8, 0.99)}, {}], optimizer=cl.optim.AdamW(lr=0.01), epochs=1, clip_norm=None
    )
    first, second = (member.model.state_dict()["0.weight"] for member in ensemble)
    assert (first != second).any()


def made(accuracy: float, loss: float = 1.0, **config: Any) -> Member:
    row = EpochRow(1, 4, 0.1, 0.5, 0.9, loss, accuracy, 2.0, 100.0)
    return Member(config, small_network(), History([row]))


def test_the_best_comes_first_and_groups_are_means_over_seeds() -> None:
    members = [
        made(0.5, lr=0.1, seed=0),
        made(0.7, lr=0.1, seed=1),
        made(0.8, 2.0, lr=0.2, seed=0),
        made(0.8, 1.0, lr=0.2, seed=1),
        made(float("nan"), lr=0.3, seed=0),
    ]
    ensemble = Ensemble(members[:4])
    assert ensemble.best is members[3]
    assert [m.describe() for m in ensemble.ranked][:2] == ["lr=0.2 seed=1", "lr=0.2 seed=0"]
    first, second = ensemble.groups()
    assert (dict(first.config), first.count, first.spread) == ({"lr": 0.2}, 2, 0.0)
    assert (second.mean, second.spread) == (pytest.approx(0.6), pytest.approx(0.1))
    lines = str(Ensemble(members)).splitlines()
    assert lines[0].split() == [
        "member",
        "loss",
        "accuracy",
        "val",
        "loss",
        "val",
        "accuracy",
        "seconds",
    ]
    assert lines[2].startswith("lr=0.2 seed=1")
    assert lines[-1].split()[-2:] == ["–", "2.0000"]
    data = ensemble.to_json()
    assert data["best"] == 3
    assert data["members"][1]["config"] == {"lr": 0.1, "seed": 1}
    assert data["groups"][0]["count"] == 2


def test_members_come_as_soon_as_they_are_trained() -> None:
    count = 0

    def counted() -> nn.Module:
        nonlocal count
        count += 1
        return small_network()

    members = each_member(
        CONFIGS, TRAIN, model=counted, optimizer=SGD, loss=nn.CrossEntropyLoss(), epochs=1, **SHARED
    )
    assert count == 0
    next(members)
    assert count == 1


def test_networks_may_differ() -> None:
    made: list[nn.Sequential] = []

    def network() -> nn.Sequential:
        width = 3 + len(made) % 2
        body = (nn.Flatten(), nn.Linear(36, width), nn.ReLU(), nn.Linear(width, 3))
        made.append(nn.Sequential(*body))
        return made[-1]

    configs = [{"seed": seed} for seed in range(3)]
    ensemble = trained(configs, model=network, epochs=1)
    assert [m.model.state_dict()["1.weight"].shape[0] for m in ensemble] == [3, 4, 3]
    assert ensemble.predict(TEST.images).shape == (len(TEST), 3)


@pytest.mark.parametrize(
    ("configs", "changes", "message"),
    [
        ([], {}, "configs is empty"),
        ([{"batch_size": 4}], {}, "a member cannot set 'batch_size'; it can set seed, schedule"),
        ([{"nesterov": True}], {}, "can change rates but not the rule"),
        ([{"exclude": ("*.bias",)}], {}, "can change rates but not the rule"),
        ([{}], {"out": "runs/a"}, "out is for one Trainer"),
    ],
)
def test_what_members_cannot_have(
    configs: list[dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ManyError, match=message):
        trained(configs, **changes)


def test_members_on_a_chain_are_those_of_layers() -> None:
    """fp32 on chip, by the reference."""
    ends = []
    for kernels in ("reference", "onchip"):
        ensemble = trained(CONFIGS[:2], kernels=kernels, clip_norm=None, engine=Engine)
        ends.append([member.model.state_dict() for member in ensemble])
    for ours, theirs in zip(*ends, strict=True):
        for name, value in theirs.items():
            assert ours[name].tobytes() == value.tobytes()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three members at a time; the threads that began."""
    began: list[str] = []

    def beside(backend: object) -> tuple[int, Callable[[], None]]:
        return 3, lambda: began.append(threading.current_thread().name)

    monkeypatch.setattr(many, "beside", beside)
    return began


def test_members_in_threads_are_those_of_one_after_the_other(threads: list[str]) -> None:
    configs = [{"seed": seed, "lr": 0.02 * (1 + seed)} for seed in range(5)]
    ensemble = trained(configs, device="cpu")
    assert 1 <= len(threads) <= 3
    assert [member.config for member in ensemble] == configs
    for member, config in zip(ensemble, configs, strict=True):
        model = small_network()
        optimizer = cl.optim.SGD(lr=config["lr"], momentum=0.9)
        trainer = cl.Trainer(
            model,
            optimizer,
            nn.CrossEntropyLoss(),
            **{**SHARED, "device": "cpu"},
            seed=config["seed"],
        )
        assert trainer.fit(TRAIN, 2, TEST).column("loss") == member.history.column("loss")
        for name, value in model.state_dict().items():
            assert member.model.state_dict()[name].tobytes() == value.tobytes(), name


def test_the_first_failure_ends_all(threads: list[str]) -> None:
    made = 0

    def failing() -> nn.Module:
        nonlocal made
        made += 1
        if made == 2:
            raise RuntimeError("no network today")
        return small_network()

    with pytest.raises(RuntimeError, match="no network today"):
        trained([{"seed": seed} for seed in range(8)], model=failing, epochs=200)
    assert made < 8
