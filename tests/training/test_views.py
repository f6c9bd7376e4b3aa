"""Predictions averaged over views of each image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.nn.losses import PointwiseLoss
from convloom.training.prediction import softmax
from convloom.training.trainer import TrainerError
from convloom.training.views import Views

RNG = np.random.default_rng(0)
DATA = cl.data.from_arrays(RNG.integers(0, 256, (11, 3, 9, 9)).astype(np.uint8), np.arange(11) % 4)


def nine(images: np.ndarray) -> tuple[np.ndarray, ...]:
    return cl.data.nine_views(images, 6)


def ten(images: np.ndarray) -> tuple[np.ndarray, ...]:
    return cl.data.ten_views(images, 6)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Made for the 6×6 middle, less that of the mean image."""
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    made.initialize(3)
    middle = DATA.centred().centre_crop(6)
    made.input_shape, made.mean_image = (3, 6, 6), middle.mean_image
    made.normalization = (middle.mean, tuple(100 * s for s in middle.std))
    return made


@pytest.mark.parametrize("device", ["cpu", "cuda-sim"])
@pytest.mark.parametrize("views", [nine, ten])
def test_figures_are_those_of_the_mean(model: nn.Module, views: Views, device: str) -> None:
    assert model.mean_image is not None
    crops = [(view - model.mean_image) * np.float32(0.01) for view in views(DATA.images)]
    each = [model.predict(crop.astype(np.float32), device=device) for crop in crops]
    mean = np.mean(each, axis=0, dtype=np.float64)
    assert np.ptp(each, axis=0).max() > 0.01
    found = cl.multiview(model, DATA, views, batch_size=4, device=device)
    assert found["n"] == 11
    assert found["accuracy"] == pytest.approx((mean.argmax(1) == DATA.labels).mean())
    own = mean[np.arange(11), DATA.labels]
    assert found["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert cl.multiview(model, DATA, views, loss=smoothed, device=device)["loss"] == pytest.approx(
        found["loss"], rel=1e-6
    )


def test_costs_of_another_kind_keep_the_last_view(model: nn.Module) -> None:
    loss = PointwiseLoss("bce_logits", "batchmean")
    found = cl.multiview(model, DATA, ten, loss=loss, device="cpu", batch_size=4)
    last = np.ascontiguousarray(DATA.images[:, :, 3:, 3:][..., ::-1])
    assert model.normalization is not None
    seen = replace(
        DATA, images=last, mean=model.normalization.mean, std=model.normalization.std,
        mean_image=model.mean_image,
    )  # fmt: skip
    trainer = cl.Trainer(model, cl.optim.SGD(lr=0.1), loss, device="cpu", batch_size=11)
    assert found["loss"] == pytest.approx(trainer.evaluate(seen)["loss"], rel=1e-6)


class Two(nn.Module):
    """Logits, and a second head that another loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.first, self.second = nn.Linear(64, 4), nn.Linear(64, 4)

    def forward(self, x: Any) -> Any:
        x = nn.functional.flatten(nn.relu(self.conv(x)))
        x.tracer.also(self.second(x))
        return self.first(x)


def test_each_cost_of_a_sum_by_its_rule(model: nn.Module) -> None:
    """Both heads by the mean of their probabilities, with errors; values by the last view."""
    two = Two().initialize(5)
    two.input_shape, two.mean_image = (3, 6, 6), model.mean_image
    two.normalization = model.normalization
    loss = nn.LossSum((
        nn.LossTerm("a", nn.CrossEntropyLoss(), 0.5, top=2),
        nn.LossTerm("b", nn.CrossEntropyLoss(), 2.0, output=1),
        nn.LossTerm("c", PointwiseLoss("mse", "batchmean"), 0.25, output=1),
    ))  # fmt: skip
    found = cl.multiview(two, DATA, ten, loss=loss, device="cpu", batch_size=4)
    costs = found["costs"]
    assert tuple(costs) == loss.figures
    means = []
    for head in ("first", "second"):
        logits = [cl.features(two, view, head, device="cpu") for view in ten(DATA.images)]
        means.append(np.mean([softmax(one) for one in logits], axis=0))
    for name, mean in zip("ab", means, strict=True):
        own = mean[np.arange(11), DATA.labels]
        assert costs[name] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    order = (-means[0]).argsort(axis=1)
    assert costs["a.top1_error"] == pytest.approx((order[:, 0] != DATA.labels).mean())
    right = (order[:, :2] == DATA.labels[:, None]).any(axis=1)
    assert costs["a.top2_error"] == pytest.approx(1 - right.mean())
    values = cl.features(two, ten(DATA.images)[-1], "second", device="cpu")
    squares = ((values - np.eye(4)[DATA.labels]) ** 2).sum(axis=1).mean()
    assert costs["c"] == pytest.approx(squares, rel=1e-5)
    weighed = 0.5 * costs["a"] + 2 * costs["b"] + 0.25 * costs["c"]
    assert found["loss"] == pytest.approx(weighed)
    assert found["accuracy"] == pytest.approx(1 - costs["a.top1_error"])


def test_features_are_averaged_over_views(model: nn.Module) -> None:
    each = [
        cl.features(model, np.ascontiguousarray(v), "1", device="cpu") for v in ten(DATA.images)
    ]
    found = cl.features(model, DATA.images, "1", views=ten, device="cpu", batch_size=4)
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-5)


def test_no_images(model: nn.Module) -> None:
    with pytest.raises(TrainerError, match="arrays has no samples"):
        cl.multiview(model, DATA.take(0), nine)
