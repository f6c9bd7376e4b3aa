"""Whole training steps with every loss: against PyTorch, and with every form of target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn

torch = pytest.importorskip("torch")

SHAPE = (1, 4, 4)
Twin = Callable[[Any], Any]

#: (our loss, PyTorch's, how the network ends): targets are numbers from 0 to 1, (N, 3).
VALUES = (
    (nn.BCEWithLogitsLoss(), torch.nn.BCEWithLogitsLoss(), ()),
    (
        nn.BCEWithLogitsLoss(reduction="sum", pos_weight=2.0),
        torch.nn.BCEWithLogitsLoss(reduction="sum", pos_weight=torch.tensor(2.0)),
        (),
    ),
    (nn.BCELoss(), torch.nn.BCELoss(), ("Sigmoid",)),
    (nn.MSELoss(), torch.nn.MSELoss(), ("Tanh",)),
    (nn.MSELoss(reduction="sum"), torch.nn.MSELoss(reduction="sum"), ()),
    (nn.MultiLabelSoftMarginLoss(), torch.nn.MultiLabelSoftMarginLoss(), ()),
    (
        nn.PointwiseLoss("log_square", "batchmean"),
        lambda y, t: torch.log(1 + (y - t) ** 2).sum() / len(y),
        ("Softmax",),
    ),
    (nn.PointwiseLoss("square", "batchmean"), lambda y, t: (y**2).sum() / len(y), ()),
)


def network(lib: Any, end: tuple[str, ...]) -> Any:
    last = [lib.Softmax(1) if name == "Softmax" else getattr(lib, name)() for name in end]
    return lib.Sequential(lib.Conv2d(1, 2, 3), lib.ReLU(), lib.Flatten(), lib.Linear(8, 3), *last)


def batch(n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(n)
    values = np.clip(draw.uniform(-1, 2, (n, 3)), 0, 1).astype(np.float32)
    return draw.standard_normal((n, *SHAPE)).astype(np.float32), values


def compiled(model: nn.Module, loss: Any, device: str = "cpu") -> cl.TrainingStep:
    return cl.compile(
        model, loss, cl.optim.SGD(lr=0.1), batch_size=6, input_shape=SHAPE, device=device
    )


def twins(end: tuple[str, ...]) -> tuple[nn.Module, Any]:
    ours, theirs = network(nn, end), network(torch.nn, end)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def compare(
    ours: nn.Module, loss: Any, y: np.ndarray, theirs: Any, peer: Any, goal: np.ndarray, device: str
) -> None:
    """Two steps of both: losses and weights. ``goal`` is PyTorch's form of the targets ``y``."""
    x = batch(len(y))[0]
    step, sgd = compiled(ours, loss, device), torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(2):
        sgd.zero_grad()
        wanted = peer(theirs(torch.from_numpy(x)), torch.from_numpy(goal))
        wanted.backward()
        sgd.step()
        np.testing.assert_allclose(step(x, y), wanted.item(), rtol=1e-5)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("loss", "peer", "end"), VALUES, ids=[str(case[0]) for case in VALUES])
def test_values(loss: Any, peer: Any, end: tuple[str, ...], device: str) -> None:
    ours, theirs = twins(end)
    compare(ours, loss, batch()[1], theirs, peer, batch()[1], device)


def test_class_numbers_are_rows_to_a_loss_of_values() -> None:
    labels = np.array([0, 2, 1, 1, 0, 2])
    ours, theirs = twins(())
    rows = np.eye(3, dtype=np.float32)[labels]
    compare(ours, nn.BCEWithLogitsLoss(), labels, theirs, torch.nn.BCEWithLogitsLoss(), rows, "cpu")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_log_likelihood_of_class_numbers(reduction: str) -> None:
    labels = np.array([0, 2, 1, 1, 0, 2])
    ours, theirs = network(nn, ()), network(torch.nn, ())
    ours, theirs = (
        nn.Sequential(ours, nn.LogSoftmax(1)),
        torch.nn.Sequential(theirs, torch.nn.LogSoftmax(1)),
    )
    ours.load_state_dict(theirs.state_dict())
    peer = torch.nn.NLLLoss(reduction=reduction)
    compare(ours, nn.NLLLoss(reduction=reduction), labels, theirs, peer, labels, "cpu")


def test_the_trainer_counts_right_answers_whatever_the_loss() -> None:
    """A data set of class numbers trains a loss of values, and its accuracy is told."""
    x, labels = batch(24)[0], np.arange(24) % 3
    x[np.arange(24), 0, labels, 0] += 4
    data = cl.data.from_arrays(x, labels)
    trainer = cl.Trainer(
        network(nn, ()),
        optimizer=cl.optim.SGD(lr=0.5, momentum=0.9),
        loss=nn.BCEWithLogitsLoss(),
        batch_size=6,
        device="cpu",
    )
    trainer.fit(data, epochs=15)
    assert trainer.evaluate(data)["accuracy"] == 1.0


def test_images_as_targets() -> None:
    """An output that is no row of classes is compared with values of its own shape."""
    ours = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(2, 1, 3, padding=1)
    )
    ours.load_state_dict(theirs.state_dict())
    goal = np.random.default_rng(1).standard_normal((6, *SHAPE)).astype(np.float32)
    compare(ours, nn.MSELoss(), goal, theirs, torch.nn.MSELoss(), goal, "cpu")


@pytest.mark.parametrize(
    ("loss", "y", "says"),
    [
        (nn.MSELoss(), np.zeros(6), r"real numbers of its shape, \('N', 3\); .* shape \(6,\)"),
        (
            nn.MSELoss(),
            np.zeros((6, 2)),
            r"MSELoss compares .* are float64 of shape \(6, 2",
        ),
        (nn.MSELoss(), np.array([0, 1, 2, 3, 0, 1]), "sample 3 has label 3"),
        (nn.NLLLoss(), np.full((6, 3), "a"), "real numbers"),
    ],
)
def test_targets_that_do_not_fit(loss: Any, y: np.ndarray, says: str) -> None:
    step = compiled(network(nn, ()), loss, "reference")
    with pytest.raises(cl.ConvloomError, match=says):
        step(batch()[0], y)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.MSELoss(reduction="none"), r"MSELoss: reduction must be 'mean' or 'sum'"),
        (lambda: nn.BCELoss(weight=1), r"BCELoss: weight=1 is not supported, only None is"),
        (lambda: nn.BCEWithLogitsLoss(pos_weight=-1), "pos_weight must be at least 0"),
        (lambda: nn.NLLLoss(ignore_index=0), r"NLLLoss: ignore_index=0 is not supported"),
        (lambda: nn.PointwiseLoss("l1"), "unknown kind 'l1'; known are bce_logits"),
        (lambda: nn.PointwiseLoss("mse", "max"), "'mean' or 'sum' or 'batchmean', it is 'max'"),
        (lambda: nn.MultiLabelSoftMarginLoss(reduction="sum"), "only 'mean' is"),
    ],
)
def test_losses_that_are_not_there(make: Any, says: str) -> None:
    with pytest.raises(cl.ConvloomError, match=says):
        make()
