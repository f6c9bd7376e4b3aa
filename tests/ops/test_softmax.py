from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import Softmax, SoftmaxGrad
from tests import zoo
from tests.ops.gradcheck import check, evaluate

#: (shape, axis): classes, channels of images, rows, columns.
CASES = (
    *(((n, k), 1) for n, k in ((1, 1), (2, 10), (31, 17), (3, 100))),
    *(((2, 5, 4, 3), dim) for dim in (1, 2, 3)),
    ((1, 17, 9, 6), 1),
    ((33, 3, 1, 1), 1),
)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("shape", "dim"), CASES, ids=str)
def test_forward_and_gradient(shape: zoo.Shape, dim: int, log: bool) -> None:
    function = torch.log_softmax if log else torch.softmax
    x = np.random.default_rng(0).standard_normal(shape)
    check(Softmax(dim, log), [x], lambda t: function(t, dim))


@pytest.mark.parametrize("log", [False, True])
def test_special_values(log: bool) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[1e4, 0, -1e4], [inf, 0, 1], [-inf, 0, 1], [-inf, -inf, -inf], [nan, 0, 1]])
    function = torch.log_softmax if log else torch.softmax
    (y,) = evaluate(Softmax(1, log), x)
    np.testing.assert_allclose(y, function(torch.from_numpy(x), 1).numpy(), rtol=1e-12)


def test_no_samples() -> None:
    assert evaluate(Softmax(), np.zeros((0, 3)))[0].shape == (0, 3)


@pytest.mark.parametrize("dim", [0, 2, -1])
def test_axes_that_are_not_there(dim: int) -> None:
    with pytest.raises(ShapeError, match=rf"axis behind the batch, 1 to 1 .* not along axis {dim}"):
        Softmax(dim).infer(TensorSpec((2, 3)))


def test_gradient_must_fit() -> None:
    with pytest.raises(ShapeError, match=r"gradient \(2, 3\) does not fit the softmax \(2, 4\)"):
        SoftmaxGrad().infer(TensorSpec((2, 3)), TensorSpec((2, 4)))
