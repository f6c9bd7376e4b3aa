"""Optimiser descriptions: values, names, and that the ops they give match PyTorch."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import convloom.optim as optim
from convloom.ops.control import hyper_vector
from convloom.training.optim import Optimizer, OptimizerError, from_json

torch = pytest.importorskip("torch")


def descend(
    optimizer: Optimizer,
    weights: dict[str, np.ndarray],
    gradients: list[dict[str, np.ndarray]],
    max_norm: float | None = None,
) -> list[dict[str, np.ndarray]]:
    """The weights after each step, by the reference of the optimiser's own op."""
    names = list(weights)
    op = optimizer.op(names, clip=max_norm is not None)
    p = [weights[name] for name in names]
    states = [np.zeros_like(value) for _ in optimizer.states for value in p]
    trace = []
    for step, gradient in enumerate(gradients):
        g = [gradient[name] for name in names]
        values = optimizer.hyper(step)
        extra = []
        if max_norm is not None:
            values["max_norm"] = max_norm
            extra = [np.array([math.sqrt(sum(float((v**2).sum()) for v in g))])]
        made = op.reference(hyper_vector(values), *extra, *p, *g, *states)
        p, states = list(made[: len(p)]), list(made[len(p) :])
        trace.append(dict(zip(names, p, strict=True)))
    return trace


def torch_descend(
    make: Any,
    weights: dict[str, np.ndarray],
    gradients: list[dict[str, np.ndarray]],
    max_norm: float | None = None,
) -> list[dict[str, np.ndarray]]:
    parameters = {k: torch.nn.Parameter(torch.from_numpy(v.copy())) for k, v in weights.items()}
    optimizer = make(parameters)
    trace = []
    for gradient in gradients:
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(gradient[name].copy())
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), max_norm)
        optimizer.step()
        trace.append({k: p.detach().numpy().copy() for k, p in parameters.items()})
    return trace


def problem(steps: int = 6) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(5)
    shapes = {"0.weight": (3, 2), "0.bias": (3,), "norm.weight": (4,)}
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return weights, [
        {name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(steps)
    ]


def test_three_steps_of_sgd_as_in_pytorch() -> None:
    one = {"w": np.ones((1,))}
    trace = descend(optim.SGD(lr=0.1, momentum=0.9), one, [one] * 3)
    assert [row["w"][0] for row in trace] == pytest.approx([0.9, 0.71, 0.439], abs=1e-12)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(
    "values",
    [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
        {"lr": 0.1, "weight_decay": 0.1},
    ],
)
def test_sgd_agrees_with_pytorch(values: dict[str, Any], clip: float | None) -> None:
    weights, gradients = problem()
    ours = descend(optim.SGD(**values), weights, gradients, clip)
    theirs = torch_descend(
        lambda p: torch.optim.SGD(list(p.values()), **values), weights, gradients, clip
    )
    for mine, other in zip(ours, theirs, strict=True):
        for name in weights:
            np.testing.assert_allclose(mine[name], other[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "values",
    [{}, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}],
)
def test_adamw_agrees_with_pytorch(values: dict[str, Any]) -> None:
    weights, gradients = problem()
    ours = descend(optim.AdamW(**values), weights, gradients)
    theirs = torch_descend(
        lambda p: torch.optim.AdamW(list(p.values()), **values), weights, gradients
    )
    for mine, other in zip(ours, theirs, strict=True):
        for name in weights:
            np.testing.assert_allclose(mine[name], other[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_weight_decay_with_zero_gradient_still_decays(kind: type[Optimizer]) -> None:
    weights, gradients = problem(1)
    zero = [{name: np.zeros_like(value) for name, value in gradients[0].items()}]
    optimizer = kind(lr=0.1, weight_decay=0.5)  # type: ignore[call-arg]
    (after,) = descend(optimizer, weights, zero)
    for name, value in weights.items():
        np.testing.assert_allclose(after[name], value * (1 - 0.1 * 0.5), rtol=1e-12)


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_norm_and_bias_are_excluded_by_name(kind: type[Optimizer]) -> None:
    weights, gradients = problem(1)
    zero = [{name: np.zeros_like(value) for name, value in gradients[0].items()}]
    optimizer = kind(lr=0.1, weight_decay=0.5, exclude=("*.bias", "norm*"))  # type: ignore[call-arg]
    (after,) = descend(optimizer, weights, zero)
    np.testing.assert_allclose(after["0.weight"], weights["0.weight"] * 0.95, rtol=1e-12)
    np.testing.assert_array_equal(after["0.bias"], weights["0.bias"])
    np.testing.assert_array_equal(after["norm.weight"], weights["norm.weight"])


def test_exclude_takes_one_pattern_and_a_layer_without_prefix() -> None:
    optimizer = optim.SGD(weight_decay=0.1, exclude="*.bias")  # type: ignore[arg-type]
    assert optimizer.exclude == ("*.bias",)
    assert optimizer.multipliers(["weight", "bias"]).decay == (1.0, 0.0)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(OptimizerError, match=r"'\*\.bais', which matches no parameter.*0\.bias"):
        optim.SGD(exclude=("*.bais",)).multipliers(["0.weight", "0.bias"])


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        (optim.SGD, {"lr": -0.1}, "lr"),
        (optim.SGD, {"lr": math.nan}, "lr"),
        (optim.SGD, {"lr": math.inf}, "lr"),
        (optim.SGD, {"lr": "0.1"}, "lr"),
        (optim.SGD, {"momentum": 1.0}, "momentum"),
        (optim.SGD, {"momentum": -0.1}, "momentum"),
        (optim.SGD, {"weight_decay": -1e-4}, "weight_decay"),
        (optim.SGD, {"nesterov": True}, "nesterov needs a momentum"),
        (optim.SGD, {"exclude": (3,)}, "exclude"),
        (optim.AdamW, {"betas": (0.9, 1.0)}, "betas"),
        (optim.AdamW, {"betas": (0.9,)}, "betas"),
        (optim.AdamW, {"eps": 0.0}, "eps"),
        (optim.AdamW, {"weight_decay": math.nan}, "weight_decay"),
    ],
)
def test_bad_values_are_errors(kind: Any, values: dict[str, Any], named: str) -> None:
    with pytest.raises(OptimizerError, match=named):
        kind(**values)


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.SGD(lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4, exclude=("*.bias",)),
        optim.AdamW(lr=1 / 3, betas=(0.8, 0.99)),
    ],
)
def test_descriptions_survive_json(optimizer: Optimizer) -> None:
    assert from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer


def test_unknown_descriptions_are_errors() -> None:
    with pytest.raises(OptimizerError, match="unknown optimiser 'Lion'"):
        from_json({"kind": "Lion"})
    with pytest.raises(OptimizerError, match="SGD has no value dampening"):
        from_json({"kind": "SGD", "dampening": 0.1})


def test_schedules_override_rates_and_adamw_corrects_with_the_beta_in_force() -> None:
    assert optim.SGD(momentum=0.9).hyper(7, lr=0.5, momentum=0.8) == {
        "lr": 0.5,
        "momentum": 0.8,
        "weight_decay": 0.0,
    }
    values = optim.AdamW().hyper(2, momentum=0.5)
    assert values["beta1"] == 0.5
    assert values["bias1"] == pytest.approx(1 - 0.5**3)
    assert values["bias2"] == pytest.approx(1 - 0.999**3)
