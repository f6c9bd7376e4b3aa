from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import ReLU, ReLUGrad
from tests import zoo
from tests.ops.gradcheck import check, evaluate


@pytest.mark.parametrize("shape", zoo.ELEMENTWISE, ids=str)
def test_forward_and_gradient(shape: zoo.Shape) -> None:
    check(ReLU(), [zoo.distinct(shape)], torch.relu)


def test_nan_inf_and_zero() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0])
    (y,) = evaluate(ReLU(), x)
    np.testing.assert_array_equal(y, [np.nan, np.inf, 0, 0, 0, 2])
    (dx,) = evaluate(ReLUGrad(), np.array([1.0, 2, 3, 4, 5, np.inf]), y)
    np.testing.assert_array_equal(dx, [1, 2, 0, 0, 0, np.inf])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gradients_that_are_not_finite_stop_at_a_closed_gate(value: float) -> None:
    (dx,) = evaluate(ReLUGrad(), np.array([value, value]), np.array([0.0, 1.0]))
    np.testing.assert_array_equal(dx, [0, value])


def test_shapes_must_agree() -> None:
    with pytest.raises(ShapeError, match=r"gradient \(2, 3\) does not fit the activation \(2, 4\)"):
        ReLUGrad().infer(TensorSpec((2, 3)), TensorSpec((2, 4)))
