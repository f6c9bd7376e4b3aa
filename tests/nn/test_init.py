"""Initialisers: moments against their formulas, PyTorch's defaults, names and their errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from convloom import nn
from convloom.nn import init

torch = pytest.importorskip("torch")

SHAPE = (64, 32, 3, 3)
FAN_IN, FAN_OUT = 32 * 9, 64 * 9


@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        ("he", math.sqrt(2 / FAN_IN)),
        ("kaiming_normal", math.sqrt(2 / FAN_IN)),
        ("kaiming_uniform", math.sqrt(2 / FAN_IN)),
        ("kaiming_uniform(a=1)", math.sqrt(1 / FAN_IN)),
        ("xavier", math.sqrt(2 / (FAN_IN + FAN_OUT))),
        ("xavier_uniform", math.sqrt(2 / (FAN_IN + FAN_OUT))),
        ("xavier_normal", math.sqrt(2 / (FAN_IN + FAN_OUT))),
        ("normal", 0.01),
        ("normal(0.02)", 0.02),
        (" normal ( std = 2e-2 ) ", 0.02),
        ("pytorch", math.sqrt(1 / (3 * FAN_IN))),
        (init.Uniform(3.0), math.sqrt(3.0)),
    ],
)
def test_deviation(name: Any, deviation: float) -> None:
    layer = nn.Conv2d(32, 64, 3, init=name).initialize(1)
    weight = layer.weight.data
    assert weight.std() == pytest.approx(deviation, rel=0.03)
    assert abs(weight.mean()) < 4 * deviation / math.sqrt(weight.size)
    if name != "pytorch":
        assert not layer.bias.data.any()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda: nn.Conv2d(8, 256, 5, groups=4, init="pytorch"),
            lambda: torch.nn.Conv2d(8, 256, 5, groups=4),
        ),
        (lambda: nn.Linear(50, 2000, init="pytorch"), lambda: torch.nn.Linear(50, 2000)),
    ],
)
def test_pytorch_default(ours: Any, theirs: Any) -> None:
    """Weight and bias spread as far as PyTorch's own, and no farther."""
    torch.manual_seed(0)
    twin = theirs().state_dict()
    for name, value in ours().state_dict().items():
        other = twin[name].numpy()
        assert np.abs(value).max() == pytest.approx(np.abs(other).max(), rel=0.02)
        assert value.std() == pytest.approx(other.std(), rel=0.15)


def test_constant_and_normal_shape() -> None:
    assert (nn.Linear(3, 2, init="constant(-0.5)").state_dict()["weight"] == -0.5).all()
    assert not nn.Linear(3, 2, init="constant").state_dict()["weight"].any()
    drawn = init.Normal(2.0).draw((200_000,), 0, "x")
    assert np.mean(np.abs(drawn) < 2.0) == pytest.approx(0.6827, abs=0.005)
    assert np.mean(np.abs(drawn) < 4.0) == pytest.approx(0.9545, abs=0.003)


def test_elements_do_not_depend_on_the_shape() -> None:
    """A value is a function of seed, name and element."""
    assert np.array_equal(
        init.Normal(1.0).draw((4, 5), 7, "a").ravel(), init.Normal(1.0).draw((40,), 7, "a")[:20]
    )


def test_an_initialiser_can_be_replaced() -> None:
    layer = nn.Linear(3, 2)
    layer.bias.initialiser = init.Constant(1.0)
    assert layer.state_dict()["bias"].tolist() == [1.0, 1.0]


def test_empty_fans_do_no_harm() -> None:
    assert init.HeNormal().draw((0, 0), 0, "x").shape == (0, 0)
    assert init.fans((7,)) == (7, 7)
    assert init.fans(SHAPE) == (FAN_IN, FAN_OUT)


@pytest.mark.parametrize(
    "wrong",
    [
        "kaiming",
        "normal(x)",
        "he(2)",
        "normal(-1)",
        "constant(nan)",
        "normal(1",
        "",
        3,
        init.Normal,
    ],
)
def test_unknown_names(wrong: Any) -> None:
    with pytest.raises(nn.ArgumentError, match=r"Linear\(2, 2\): .*init") as caught:
        nn.Linear(2, 2, init=wrong)
    if wrong == "kaiming":
        assert (
            "known are he, kaiming_normal, kaiming_normal_fan_out, kaiming_uniform(x), xavier"
            in str(caught.value)
        )
