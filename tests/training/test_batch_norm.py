"""Running values through training: as PyTorch's on every device; saved and resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import convloom as cl
from convloom import nn
from convloom.ir import ShapeError
from convloom.nn import load_weights

DEVICES = ("reference", "cpu", "cuda-sim")


def network(lib: object, momentum: float | None = 0.1) -> object:
    return lib.Sequential(  # type: ignore[attr-defined]
        lib.Conv2d(2, 5, 3, bias=False),  # type: ignore[attr-defined]
        lib.BatchNorm2d(5, momentum=momentum),  # type: ignore[attr-defined]
        lib.ReLU(),  # type: ignore[attr-defined]
        lib.Conv2d(5, 4, 3),  # type: ignore[attr-defined]
        lib.BatchNorm2d(4, affine=False),  # type: ignore[attr-defined]
        lib.Flatten(),  # type: ignore[attr-defined]
        lib.Linear(16, 3),  # type: ignore[attr-defined]
        lib.BatchNorm1d(3),  # type: ignore[attr-defined]
    )


def batches(count: int, n: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    shape = (n, 2, 6, 6)
    return [
        (rng.normal(1, 2, shape).astype(np.float32), rng.integers(0, 3, n)) for _ in range(count)
    ]


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("device", DEVICES)
def test_training_steps_are_pytorchs(device: str, momentum: float | None) -> None:
    ours, theirs = network(nn, momentum), network(torch.nn, momentum)
    assert isinstance(ours, nn.Module)
    assert isinstance(theirs, torch.nn.Module)
    ours.load_state_dict(theirs.state_dict())
    step = cl.compile(
        ours,
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.1, momentum=0.9),
        batch_size=6,
        input_shape=(2, 6, 6),
        device=device,
    )
    rule = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(4):
        loss = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        rule.zero_grad()
        loss.backward()
        rule.step()
        assert step(x, y) == pytest.approx(loss.item(), rel=1e-4)
    state = ours.state_dict()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-3, atol=1e-4)
    assert state["1.num_batches_tracked"] == 4
    x = batches(1)[0][0]
    wanted = torch.softmax(theirs.eval()(torch.from_numpy(x)), 1).detach().numpy()
    np.testing.assert_allclose(ours.predict(x, device=device), wanted, atol=1e-4)
    np.testing.assert_allclose(ours.predict(x[:1], device=device), wanted[:1], atol=1e-4)


def test_a_batch_of_one_value_a_channel_is_refused_and_the_next_one_trains() -> None:
    model = network(nn)
    assert isinstance(model, nn.Module)
    step = cl.compile(
        model,
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.1),
        batch_size=6,
        input_shape=(2, 6, 6),
        device="reference",
    )
    (x, y) = batches(1)[0]
    with pytest.raises(ShapeError, match="expected more than 1 value per channel when training"):
        step(x[:1], y[:1])
    assert np.isfinite(step(x, y))


@pytest.mark.parametrize("device", DEVICES)
def test_a_watched_step_that_overflows_leaves_the_running_values(device: str) -> None:
    model = network(nn)
    assert isinstance(model, nn.Module)
    step = cl.compile(
        model,
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.1),
        batch_size=6,
        input_shape=(2, 6, 6),
        device=device,
    )
    ((x, y),) = batches(1)
    step(x, y)
    before = model.state_dict()
    found = step.watch(x * np.float32(1e25), y)
    assert found is not None
    assert found.startswith("1 ")
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def trainer(model: nn.Module, out: Path) -> cl.Trainer:
    return cl.Trainer(
        model,
        optimizer=cl.optim.SGD(lr=0.05, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        batch_size=8,
        device="cpu",
        seed=1,
        out=out,
    )


def test_a_resumed_run_goes_on_with_the_running_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (40, 2, 6, 6), np.uint8)
    data = cl.data.from_arrays(images, rng.integers(0, 3, 40))
    whole, parts = (network(nn) for _ in range(2))
    assert isinstance(whole, nn.Module)
    assert isinstance(parts, nn.Module)
    trainer(whole, tmp_path / "a").fit(data, epochs=2, validation=data)
    trainer(parts, tmp_path / "b").fit(data, epochs=1, validation=data)
    again = network(nn)
    assert isinstance(again, nn.Module)
    trainer(again, tmp_path / "b").fit(data, epochs=2, validation=data, resume=True)
    state = whole.state_dict()
    assert state["1.num_batches_tracked"] == 10
    for name, value in again.state_dict().items():
        np.testing.assert_array_equal(value, state[name])
    for file in ("last", "best"):
        saved = load_weights(tmp_path / "a" / f"{file}.safetensors")
        assert set(saved) == set(state)
    np.testing.assert_array_equal(
        cl.load(tmp_path / "a" / "last.safetensors").predict(images), whole.predict(images)
    )
