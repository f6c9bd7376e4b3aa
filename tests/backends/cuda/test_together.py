"""Many networks in one launch: each has the bits that it has alone, and none reaches another."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from convloom import nn, normalise
from convloom.backends.base import Backend, Storage, get_backend
from convloom.backends.cuda import together
from convloom.backends.cuda.onchip import plan as onchip
from convloom.backends.cuda.onchip.config import ALONE, PLAIN, Config, using
from convloom.backends.cuda.onchip.together import parts_of
from convloom.backends.feeding import (
    Crops,
    Job,
    Members,
    Results,
    Samples,
    device_input,
)
from convloom.compiler import compile_graph
from convloom.ir import Plan, ShapeError
from convloom.ops.control import hyper_vector
from convloom.optim import SGD, AdamW
from convloom.training.graphs import INDEX, evaluation_graph, training_graph
from tests.backends.cuda.networks import CLASSES, SHAPE, assert_same_bits, evaluate_plan, pixels

N, STEPS = 7, 3
#: Members; the number of one with NaN among its weights, and of one that has left off.
MEMBERS, DIVERGED, LEFT = 4, 1, 3
CROPS, MOMENTUM = Crops(1), SGD(lr=0.1, momentum=0.9)


def convolutions() -> nn.Module:
    """Sums of filters' gradients that fit on the matrix, which is copied anew behind them."""
    return nn.Sequential(
        *(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32, 448), nn.ReLU(), nn.Dropout(0.25), nn.Linear(448, CLASSES)),
    )


def few_outputs() -> nn.Module:
    """Sums that lie on all weights, and beyond them."""
    return nn.Sequential(
        *(nn.Conv2d(2, 5, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(5, 9, 3, padding=1), nn.Flatten(), nn.Linear(9 * 16, CLASSES)),
    )


def few_pixels() -> nn.Module:
    """Sums that take more memory than all else, and no multiple of 16 bytes."""
    return nn.Sequential(nn.Conv2d(2, 3, 5), nn.Flatten(), nn.Linear(3 * 20, CLASSES))


def perceptron() -> nn.Module:
    """No filters, and so no sums."""
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, CLASSES))


@dataclass(frozen=True)
class Case:
    network: nn.Module
    precision: str
    optimizer: SGD | AdamW
    crops: Crops | None = None
    config: Config | None = PLAIN

    def plans(self, backend: Backend, n: int) -> tuple[Plan, Plan]:
        """Of training and of evaluation."""
        with using(self.config):
            return self._plans(backend, n)

    def _plans(self, backend: Backend, n: int) -> tuple[Plan, Plan]:
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        forward = self.network.trace(SHAPE, n)
        trains = training_graph(forward, loss, INDEX, self.optimizer, False)
        train = compile_graph(trains, backend, "onchip", precision=self.precision)
        evaluates = evaluation_graph(forward, loss, INDEX)
        kept = {name: train.spec(name) for name in train.graph.roles}
        return train, compile_graph(evaluates, backend, "onchip", kept, self.precision)

    def fill(self, storage: Storage, member: int) -> None:
        """A member's weights, seed and states; those of one hold a NaN."""
        self.network.initialize(member)
        for name, value in self.network.state_dict().items():
            storage.write(name, value + np.float32(0.01 * member))
        if member == DIVERGED:
            bias = next(name for name in storage.layouts if name.endswith("bias"))
            storage.write(bias, np.full(storage.layouts[bias].shape, np.nan, np.float32))
        storage.write("loss.grad", np.ones((), np.float32))
        if "counter" in storage.layouts:
            storage.write("counter", np.array([100 + member, 0], np.uint64))


CASES = {
    "bf16": Case(convolutions(), "bf16", MOMENTUM, CROPS),
    "weights": Case(few_outputs(), "bf16", MOMENTUM),
    "tf32": Case(convolutions(), "tf32", MOMENTUM),
    "fp32": Case(few_outputs(), "fp32", AdamW(lr=0.01)),
    "sums": Case(few_pixels(), "fp32", MOMENTUM),
    "perceptron": Case(perceptron(), "bf16", MOMENTUM),
    "biases": Case(few_outputs(), "tf32", MOMENTUM, config=Config(early=True)),
}


@pytest.fixture(params=["cuda-sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    if shutil.which("g++"):
        monkeypatch.setenv("CONVLOOM_SIM", os.environ.get("CONVLOOM_SIM") or "asan")
    return get_backend(request.param)


def samples() -> Samples:
    one = pixels()
    return Samples(one.images, one.labels, *normalise.coefficients((0.31, 0.52), (0.27, 0.19)))


@dataclass(frozen=True)
class Tables:
    """What each member is told."""

    orders: Sequence[np.ndarray]
    rates: Sequence[np.ndarray]
    draws: Sequence[np.ndarray] | None

    @classmethod
    def of(cls, case: Case, plan: Plan, n: int, members: int = MEMBERS) -> Tables:
        draw = np.random.default_rng(5)
        width = plan.spec("hyper").size
        rows = [
            [
                hyper_vector(
                    {
                        **{"lr": 0.1 / (1 + step + member), "momentum": 0.9, "beta1": 0.9},
                        **{"weight_decay": 0.01 * member, "beta2": 0.99, "eps": 1e-3},
                        **{"bias1": 0.5, "bias2": 0.5},
                    }
                )[:width]
                for step in range(STEPS)
            ]
            for member in range(members)
        ]
        draws = [draw.integers(0, 2, (40, 3), np.uint8) for _ in range(members)]
        return cls(
            [draw.integers(0, 40, (STEPS, n)) for _ in range(members)],
            [np.array(row) for row in rows],
            draws if case.crops else None,
        )


def state(storage: Storage) -> dict[str, np.ndarray]:
    return {name: storage.read(name) for name in storage.layouts if name != "loss.grad"}


def alone(
    case: Case, backend: Backend, plans: tuple[Plan, Plan], told: Tables, member: int
) -> tuple[list[Results], dict[str, np.ndarray]]:
    """A member on its own: training, evaluation, and what it holds then."""
    storage = backend.storage(plans[0])
    case.fill(storage, member)
    device = device_input(backend, storage)
    assert device is not None
    data, order = device.upload(samples()), told.orders[member]
    train, evaluate = (
        device.resident(backend.executable(plan, storage), data, crops)
        for plan, crops in zip(plans, (case.crops, None), strict=True)
    )
    drawn = None if told.draws is None else told.draws[member]
    train.begin(order, told.rates[member], first_step=4, draws=drawn)
    made = joined([train.ask(1).results() for _ in order])
    evaluate.begin(order, None)
    return [made, joined([evaluate.ask(1).results() for _ in order])], state(storage)


def joined(parts: Sequence[Results]) -> Results:
    """Results of one step after the other."""
    return Results(
        np.concatenate([part.losses for part in parts]),
        np.concatenate([part.corrects for part in parts]),
        np.concatenate([part.costs for part in parts]),
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *(("bf16", 1), ("weights", 2), ("tf32", 2), ("fp32", 2), ("fp32", 3)),
        *(("perceptron", 2), ("biases", 2), ("sums", 2)),
    ],
)
def test_members_have_the_bits_that_they_have_alone(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, name: str, parts: int
) -> None:
    """Three blocks of two or three images each, which fewer blocks make."""
    monkeypatch.setattr(onchip, "MOST_BLOCKS", 3)
    monkeypatch.setattr(together, "parts_of", lambda blocks, members: parts)
    case = CASES[name]
    plans = case.plans(backend, N)
    memory, told = memory_for(case, backend, plans), Tables.of(case, plans[0], N)
    storages = [memory.storage(member, plans[0]) for member in range(MEMBERS)]
    for member, storage in enumerate(storages):
        case.fill(storage, member)
    left = state(storages[LEFT])
    train, evaluate = memory.runner(0), memory.runner(1)
    gone = [member == LEFT for member in range(MEMBERS)]
    train.begin(told.orders, told.rates, first_step=1, draws=told.draws, left_off=gone)
    made = [train.ask(2, 4).results(), train.ask(2).results()]
    assert train.left == 0
    evaluate.begin(told.orders, None)
    seen = [evaluate.ask(1).results() for _ in range(STEPS)]
    assert_same_bits(state(storages[LEFT]), left)
    for member in set(range(MEMBERS)) - {LEFT}:
        results, held = alone(case, backend, plans, told, member)
        for ours, theirs in zip((joined(made), joined(seen)), results, strict=True):
            assert ours.losses[:, member].tobytes() == theirs.losses.tobytes()
            assert ours.corrects[:, member].tobytes() == theirs.corrects.tobytes()
            assert np.isfinite(theirs.losses).all() == (member != DIVERGED)
        assert_same_bits(state(storages[member]), held)


def memory_for(case: Case, backend: Backend, plans: tuple[Plan, Plan]) -> Members:
    """Memory for all members, who train and evaluate on the same data."""
    device = device_input(backend, backend.storage(plans[0]))
    assert device is not None
    data = device.upload(samples())
    jobs = [Job(plans[0], data, case.crops, STEPS), Job(plans[1], data, None, STEPS)]
    assert [device.refusal(job.plan, samples(), job.crops) for job in jobs] == ["", ""]
    need = device.member_bytes(jobs)
    assert sum(plans[0].arenas.values()) < need < 2 * sum(plans[0].arenas.values()) + 10_000
    return device.members(jobs, MEMBERS)


def test_what_cannot_run_together_says_why() -> None:
    case, backend = CASES["bf16"], get_backend("cuda-sim")
    plans = case.plans(backend, N)
    layers = evaluate_plan(backend, N)
    device = device_input(backend, backend.storage(plans[0]))
    assert device is not None
    assert "runs on chip as a whole" in device.refusal(layers, samples(), None)
    noisy = Crops(0, noise=True)
    assert "moved colours" in device.refusal(plans[0], samples(), noisy)
    with_map = replace(samples(), shift=np.zeros(SHAPE, np.float32))
    assert "mean images" in device.refusal(plans[0], with_map, None)


def test_tables_of_other_shapes_are_refused() -> None:
    case, backend = CASES["perceptron"], get_backend("cuda-sim")
    plans = case.plans(backend, N)
    told = Tables.of(case, plans[0], N)
    runner = memory_for(case, backend, plans).runner(0)
    with pytest.raises(ShapeError, match=r"order must be \(steps, 7\)"):
        runner.begin([order[:, 1:] for order in told.orders], told.rates)
    with pytest.raises(ShapeError, match=r"rates must be \(3, 9\)"):
        runner.begin(told.orders, [rates[1:] for rates in told.rates])


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_of_many_networks_a_block_carries_whole_images(name: str) -> None:
    """Whatever clusters do where one is trained alone; the workspace is enough for both."""
    backend = get_backend("cuda-sim")
    default, alone = (
        replace(CASES[name], config=config).plans(backend, 20)[0].steps[0].selection
        for config in (None, ALONE)
    )
    assert default.segment is not None
    assert (default.segment.cluster, default.segment.together) == (2, True)
    assert default.launch.phases != alone.launch.phases
    assert default.launch.together == alone.launch.together
    assert default.launch.together is not None
    assert default.workspace >= alone.workspace


@pytest.mark.parametrize(
    ("members", "parts"), [(1, 64), (2, 64), (32, 4), (64, 2), (132, 1), (256, 1), (2000, 4)]
)
def test_blocks_of_a_member_are_as_many_as_fill_the_device(members: int, parts: int) -> None:
    assert parts_of(64, members) == parts
