from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.compiler.autodiff import differentiate
from convloom.ir import GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops import BiasGrad, Conv2d, Conv2dDgrad, Conv2dWgrad
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients
from tests.zoo import Case


def peer(op: Conv2d):  # type: ignore[no-untyped-def]
    def conv(x, w, b=None):  # type: ignore[no-untyped-def]
        return torch.nn.functional.conv2d(x, w, b, op.stride, op.padding, op.dilation, op.groups)

    return conv


@pytest.mark.parametrize("case", zoo.CONV, ids=str)
def test_forward_and_gradients(case: Case) -> None:
    assert isinstance(case.op, Conv2d)
    check(case.op, case.inputs(), peer(case.op))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_keeps_the_dtype(dtype: str) -> None:
    case = zoo.CONV[2]
    inputs = case.inputs(dtype=dtype)
    (y,) = evaluate(case.op, *inputs)
    assert y.dtype == dtype
    for grad in gradients(case.op, inputs, y).values():
        assert grad.dtype == dtype


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    x, w, b = (TensorSpec(shape) for shape in ((2, 3, 5, 7), (4, 3, 3, 3), (4,)))
    builder = GraphBuilder()
    for name, spec in (("x", x), ("w", w), ("b", b)):
        builder.declare(name, spec, Role.INPUT)
    (y,) = builder.add(Conv2d(), ("x", "w", "b"))
    builder.declare("dy", builder.spec(y), Role.INPUT)
    nodes = differentiate(builder.build(), y, "dy", ["w"]).nodes
    assert [node.op.name for node in nodes] == ["Conv2d", "Conv2dWgrad"]


def test_empty_batch() -> None:
    x, w, b = np.ones((0, 3, 5, 7)), np.ones((4, 3, 3, 3)), np.ones(4)
    (y,) = evaluate(Conv2d(), x, w, b)
    assert y.shape == (0, 4, 3, 5)
    grads = gradients(Conv2d(), (x, w, b), y)
    assert grads[0].shape == x.shape
    assert not grads[1].any()
    assert not grads[2].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_pass_as_in_pytorch(value: float) -> None:
    x, w = zoo.CONV[0].inputs()
    x, w = x[:2], w.copy()
    x[1, 2, 4, 3] = value
    w[5, 1, 1, 1] = value
    op = zoo.CONV[0].op
    assert isinstance(op, Conv2d)
    (y,) = evaluate(op, x, w)
    wanted = peer(op)(torch.from_numpy(x), torch.from_numpy(w)).numpy()
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)


ERRORS = [
    (Conv2d(), (1, 1, 2, 2), (1, 1, 3, 3), "covers 3 cells of height.*has 2 with 0 of padding"),
    (Conv2d(groups=4), (1, 6, 5, 5), (4, 1, 3, 3), "6 input channels and 4 filters.*4 groups"),
    (Conv2d(groups=4), (1, 4, 5, 5), (6, 1, 3, 3), "4 input channels and 6 filters.*4 groups"),
    (Conv2d(groups=0), (1, 4, 5, 5), (4, 4, 3, 3), "0 groups"),
    (Conv2d(dilation=(0, 1)), (1, 1, 5, 5), (1, 1, 3, 3), r"dilation must be at least 1.*\(0, 1\)"),
    (
        Conv2d(dilation=(1, 2**31 - 1)),
        (1, 1, 5, 5),
        (1, 1, 3, 3),
        "covers 4294967295 cells of width",
    ),
    (Conv2d(dilation=(2**31, 1)), (1, 1, 5, 5), (1, 1, 3, 3), "dilation must be below 2.31"),
    (Conv2d(padding=(0, -1)), (1, 1, 5, 5), (1, 1, 3, 3), "padding must be at least 0"),
    (Conv2d(stride=(0, 1)), (1, 1, 5, 5), (1, 1, 3, 3), "stride must be at least 1"),
    (Conv2d(), (1, 1, 5, 5), (1, 1, 0, 3), "kernel size must be at least 1"),
    (Conv2d(), (1, 3, 5, 5), (1, 4, 3, 3), "expect 4 input channels, the input has 3"),
    (Conv2d(), (1, 75), (1, 3, 3, 3), r"needs an input of shape \(N, C, H, W\), it got \(1, 75\)"),
]


@pytest.mark.parametrize("op, x, w, message", ERRORS)
def test_impossible_geometry(op: Conv2d, x: zoo.Shape, w: zoo.Shape, message: str) -> None:
    builder = GraphBuilder()
    builder.declare("x", TensorSpec(x), Role.INPUT)
    builder.declare("w", TensorSpec(w), Role.PARAMETER)
    with pytest.raises(ShapeError, match=f"layer 'features.3': .*{message}"):
        builder.add(op, ("x", "w"), layer="features.3")


def test_a_bias_of_the_wrong_length() -> None:
    specs = [TensorSpec(shape) for shape in ((1, 1, 5, 5), (2, 1, 3, 3), (3,))]
    with pytest.raises(ShapeError, match=r"bias has shape \(3,\), 2 filters need \(2,\)"):
        Conv2d().infer(*specs)


def test_the_largest_dilation_is_fine_for_one_tap() -> None:
    x, w = np.ones((1, 1, 2, 3)), np.full((1, 1, 1, 1), 2.0)
    (y,) = evaluate(Conv2d(dilation=(2**31 - 1, 2**31 - 1)), x, w)
    np.testing.assert_array_equal(y, 2 * x)


def test_flops_count_multiply_adds_twice() -> None:
    x, w, b, y = (TensorSpec(s) for s in ((2, 6, 9, 9), (4, 3, 3, 3), (4,), (2, 4, 7, 7)))
    taps = 2 * (2 * 4 * 7 * 7) * 3 * 3 * 3
    conv = Conv2d(groups=2)
    assert conv.flops((x, w), (y,)) == taps
    assert conv.flops((x, w, b), (y,)) == taps + y.size
    assert Conv2dDgrad(groups=2, size=(9, 9)).flops((y, w), (x,)) == taps
    assert Conv2dWgrad(groups=2, kernel=(3, 3)).flops((x, y), (w,)) == taps
    assert BiasGrad().flops((y,), (b,)) == y.size
    assert conv.nbytes((x, w, b), (y,)) == 4 * (x.size + w.size + b.size + y.size)
