from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops import Linear, LinearDgrad, LinearWgrad
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients
from tests.zoo import Case


@pytest.mark.parametrize("case", zoo.LINEAR, ids=str)
def test_forward_and_gradients(case: Case) -> None:
    check(case.op, case.inputs(), torch.nn.functional.linear)


def test_empty_batch() -> None:
    inputs = (np.ones((0, 3)), np.ones((4, 3)), np.ones(4))
    (y,) = evaluate(Linear(), *inputs)
    assert y.shape == (0, 4)
    dx, dw, db = gradients(Linear(), inputs, y).values()
    assert dx.shape == (0, 3)
    assert not dw.any()
    assert not db.any()


def test_nan_and_inf_pass() -> None:
    x, w = np.array([[np.inf, 1.0], [0.0, np.nan]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    (y,) = evaluate(Linear(), x, w)
    np.testing.assert_array_equal(y, [[np.nan, np.inf], [np.nan, np.nan]])


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((2, 100), (10, 96)), r"expects 96 input features, the input has 100.*Linear\(100, 10\)"),
        (((2, 3, 4, 4), (10, 48)), r"shape \(N, features\), it got \(2, 3, 4, 4\); put a Flatten"),
        (((2, 96), (10, 96), (9,)), r"bias has shape \(9,\), 10 outputs need \(10,\)"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[zoo.Shape, ...], message: str) -> None:
    builder = GraphBuilder()
    names = [builder.declare(f"x{i}", TensorSpec(s), Role.INPUT) for i, s in enumerate(shapes)]
    with pytest.raises(ShapeError, match=f"layer 'head': .*{message}"):
        builder.add(Linear(), names, layer="head")


def test_gradient_ops_refuse_shapes_that_do_not_fit() -> None:
    dy, w, x = TensorSpec((2, 5)), TensorSpec((4, 3)), TensorSpec((3, 3))
    with pytest.raises(ShapeError, match=r"gradient \(2, 5\) does not fit the weight \(4, 3\)"):
        LinearDgrad().infer(dy, w)
    with pytest.raises(ShapeError, match=r"gradient \(2, 5\) does not fit the input \(3, 3\)"):
        LinearWgrad().infer(x, dy)


def test_flops() -> None:
    x, w, b, y = (TensorSpec(shape) for shape in ((7, 3), (5, 3), (5,), (7, 5)))
    assert Linear().flops((x, w), (y,)) == 2 * 7 * 3 * 5
    assert Linear().flops((x, w, b), (y,)) == 2 * 7 * 3 * 5 + 7 * 5
    assert LinearDgrad().flops((y, w), (x,)) == 2 * 7 * 3 * 5
    assert LinearWgrad().flops((x, y), (w,)) == 2 * 7 * 3 * 5
