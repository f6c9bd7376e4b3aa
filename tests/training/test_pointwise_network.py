"""A network of activations and both kinds of dropout: the same steps on every device."""

from __future__ import annotations

import numpy as np
import pytest

import convloom as cl
from convloom import nn

SHAPE = (1, 12, 12)


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Dropout2d(0.25), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 4, 3), nn.ReLU6(), nn.Flatten()),
        *(nn.Dropout(0.5, rescale=False), nn.Linear(36, 5)),
    ).initialize(0)


def losses(device: str) -> list[float]:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((4, *SHAPE)).astype(np.float32), np.arange(4)
    step = cl.compile(
        *(network(), nn.CrossEntropyLoss(), cl.optim.SGD(lr=0.1)),
        batch_size=4,
        input_shape=SHAPE,
        device=device,
    )
    return [step(x, y) for _ in range(3)]


@pytest.mark.parametrize("device", ["cpu", "cuda-sim"])
def test_devices_agree(device: str) -> None:
    np.testing.assert_allclose(losses(device), losses("reference"), rtol=1e-5)


def test_prediction_multiplies_what_was_not_rescaled() -> None:
    model = network()
    x = np.random.default_rng(0).standard_normal((3, *SHAPE)).astype(np.float32)
    found = {device: model.predict(x, device=device) for device in ("reference", "cpu")}
    np.testing.assert_allclose(found["cpu"], found["reference"], rtol=1e-4)
    plain = nn.Sequential(*[layer for layer in model if not isinstance(layer, nn.Dropout)])
    weights = dict(zip(plain.state_dict(), model.state_dict().values(), strict=True))
    weights["7.weight"] = 0.5 * weights["7.weight"]
    plain.load_state_dict(weights)
    np.testing.assert_allclose(plain.predict(x, device="reference"), found["reference"], rtol=1e-4)


@pytest.mark.parametrize("end", [nn.Softmax(), nn.Sigmoid(), nn.LogSoftmax(), None], ids=str)
def test_probabilities_are_not_squashed_twice(end: nn.Module | None) -> None:
    logits = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    model = nn.Sequential(logits, end) if end is not None else nn.Sequential(logits)
    model.initialize(0)
    x = np.random.default_rng(0).standard_normal((5, *SHAPE)).astype(np.float32)
    y = x.reshape(5, -1) @ logits.state_dict()["1.weight"].T + logits.state_dict()["1.bias"]
    powers = np.exp(y)
    shares = powers / powers.sum(axis=1, keepdims=True)
    wanted = powers / (1 + powers) if isinstance(end, nn.Sigmoid) else shares
    np.testing.assert_allclose(model.predict(x, device="reference"), wanted, rtol=1e-4)
