from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import Activation, FusedSum, Mul, WeightedSum
from tests import zoo
from tests.ops.gradcheck import check, close, evaluate, gradients

SHAPES = zoo.ELEMENTWISE[::5]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("coefficients", [(2.5,), (1.0, -1.0), (0.5, 0.0, 3.0)], ids=str)
def test_weighted_sum(coefficients: tuple[float, ...], shape: zoo.Shape) -> None:
    terms = [zoo.distinct(shape, at) for at in range(len(coefficients))]

    def peer(*tensors: torch.Tensor) -> torch.Tensor:
        return sum(c * x for c, x in zip(coefficients, tensors, strict=True))  # type: ignore[return-value]

    check(WeightedSum(coefficients), terms, peer)
    (y,) = evaluate(FusedSum(coefficients), *terms)
    close(y, torch.relu(peer(*map(torch.from_numpy, terms))).numpy())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product(shape: zoo.Shape) -> None:
    check(Mul(), [zoo.distinct(shape, 0), zoo.distinct(shape, 1)], torch.mul)


def test_square_by_product() -> None:
    """Both inputs are one tensor: the gradient is the sum of two."""
    x, dy = np.array([3.0, -2.0]), np.array([1.0, 10.0])
    grads = gradients(Mul(), [x, x], dy)
    np.testing.assert_array_equal(grads[0] + grads[1], 2 * x * dy)
    np.testing.assert_array_equal(gradients(Activation("square"), [x], dy)[0], 2 * x * dy)


def test_not_finite() -> None:
    a, b = np.array([np.nan, np.inf, np.inf, 1.0]), np.array([1.0, -np.inf, np.inf, np.inf])
    nan, inf = np.nan, np.inf
    np.testing.assert_array_equal(evaluate(WeightedSum((1.0, 1.0)), a, b)[0], [nan, nan, inf, inf])
    np.testing.assert_array_equal(evaluate(FusedSum((1.0, 2.0)), a, b)[0], [nan, nan, inf, inf])
    np.testing.assert_array_equal(evaluate(Mul(), a, b)[0], [nan, -inf, inf, inf])


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        (WeightedSum((1.0,)), ((2, 3), (2, 3)), "a coefficient for each tensor, it got 1 for 2"),
        (WeightedSum((1.0, 1.0)), ((2, 3), (2, 4)), r"added, these are \(2, 3\) and \(2, 4\)"),
        (WeightedSum((float("inf"),)), ((2, 3),), "must be finite"),
        (Mul(), ((2, 3), (1, 3)), r"multiplied, these are \(2, 3\) and \(1, 3\)"),
    ],
)
def test_impossible(op: Mul, shapes: tuple[zoo.Shape, ...], says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        op.infer(*map(TensorSpec, shapes))
