from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import Activation, ActivationGrad, ReLU, ReLUGrad
from convloom.ops.activation import KINDS
from tests import zoo
from tests.ops.gradcheck import check, evaluate

#: One or more of every kind, with PyTorch's function, or the formula where it has none.
FAMILY: tuple[tuple[Activation, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    (Activation("leaky_relu", 0.1), lambda x: functional.leaky_relu(x, 0.1)),
    (Activation("leaky_relu", -0.5), lambda x: functional.leaky_relu(x, -0.5)),
    (Activation("leaky_relu"), lambda x: functional.leaky_relu(x, 0.0)),
    (Activation("clamp", 0.0, 6.0), functional.relu6),
    (Activation("clamp", -0.4, 0.3), lambda x: functional.hardtanh(x, -0.4, 0.3)),
    (Activation("elu", 1.0), functional.elu),
    (Activation("elu", -0.7), lambda x: functional.elu(x, -0.7)),
    (Activation("gelu"), functional.gelu),
    (Activation("gelu_tanh"), lambda x: functional.gelu(x, approximate="tanh")),
    (Activation("silu"), functional.silu),
    (Activation("hardswish"), functional.hardswish),
    (Activation("tanh", 1.0, 1.0), torch.tanh),
    (Activation("tanh", 1.7159, 0.6666), lambda x: 1.7159 * torch.tanh(0.6666 * x)),
    (Activation("sigmoid"), torch.sigmoid),
    (Activation("softplus", 1.0, 20.0), functional.softplus),
    (Activation("softplus", 2.0, 1.0), lambda x: functional.softplus(x, 2.0, 1.0)),
    (Activation("softplus", -1.5, 3.0), lambda x: functional.softplus(x, -1.5, 3.0)),
    (Activation("square"), torch.square),
    (Activation("abs"), torch.abs),
    (Activation("sqrt"), torch.sqrt),
    (Activation("linear", 2.0, -1.0), lambda x: 2 * x - 1),
    (Activation("drelu", 1.5), lambda x: x - 1.5 * torch.tanh(x / 1.5)),
)
SPECIAL = np.array([-np.inf, -200.0, -3.0, -0.0, 0.0, 3.0, 6.0, 200.0, np.inf, np.nan])


@pytest.mark.parametrize("shape", zoo.ELEMENTWISE, ids=str)
def test_forward_and_gradient(shape: zoo.Shape) -> None:
    check(ReLU(), [zoo.distinct(shape)], torch.relu)


@pytest.mark.parametrize("shape", zoo.ELEMENTWISE[::6], ids=str)
@pytest.mark.parametrize("case", FAMILY, ids=lambda case: str(case[0]))
def test_family(
    case: tuple[Activation, Callable[[torch.Tensor], torch.Tensor]], shape: zoo.Shape
) -> None:
    op, peer = case
    x = zoo.distinct(shape)
    check(op, [np.abs(x) + 0.25 if op.kind == "sqrt" else x], peer)


def test_every_kind_is_tested() -> None:
    assert {op.kind for op, _ in FAMILY} == set(KINDS)


@pytest.mark.parametrize("case", FAMILY, ids=lambda case: str(case[0]))
def test_family_at_special_values(
    case: tuple[Activation, Callable[[torch.Tensor], torch.Tensor]],
) -> None:
    op, peer = case
    (y,) = evaluate(op, SPECIAL)
    expected = peer(torch.from_numpy(SPECIAL)).numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(op.reference(SPECIAL.astype(np.float32))[0], y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", FAMILY, ids=lambda case: str(case[0]))
def test_gradient_at_kinks(
    case: tuple[Activation, Callable[[torch.Tensor], torch.Tensor]],
) -> None:
    op, peer = case
    x = np.array([-0.0, 0.0, 3.0, 6.0, -3.0])[: 4 if op.kind == "sqrt" else 5]
    leaf = torch.from_numpy(x.copy()).requires_grad_()
    peer(leaf).sum().backward()
    assert leaf.grad is not None
    kept = {"x": (x,), "y": op.reference(x), "": ()}[op.reads]
    (dx,) = evaluate(ActivationGrad(op.kind, op.a, op.b), np.ones_like(x), *kept)
    np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-12, atol=1e-12)


def test_cuda_convnets_slope_of_abs_at_zero() -> None:
    (dx,) = evaluate(ActivationGrad("abs", -1.0), np.full(3, 2.0), np.array([-4.0, 0, 4]))
    np.testing.assert_array_equal(dx, [-2, -2, 2])


def test_softplus_of_a_hundred() -> None:
    assert Activation("softplus", 1.0, 4.0).reference(np.array([100.0]))[0] == [100.0]


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
    (dx,) = evaluate(ActivationGrad("clamp", 0.0, 6.0), np.full(3, value), np.array([0.0, 1, 6]))
    np.testing.assert_array_equal(dx, [0, value, 0])


def test_shapes_must_agree() -> None:
    with pytest.raises(ShapeError, match=r"gradient \(2, 3\) does not fit the activation \(2, 4\)"):
        ReLUGrad().infer(TensorSpec((2, 3)), TensorSpec((2, 4)))
    with pytest.raises(ShapeError, match=r"gradient \(2, 3\) does not fit the activation \(2, 4\)"):
        ActivationGrad("silu").infer(TensorSpec((2, 3)), TensorSpec((2, 4)))
    with pytest.raises(ShapeError, match="reads 1 tensors, it got 2"):
        ActivationGrad("linear", 2.0).infer(TensorSpec((2, 3)), TensorSpec((2, 3)))


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (Activation("swish"), "unknown activation 'swish'; known are leaky_relu, clamp"),
        (Activation("tanh", 0.0, 1.0), "tanh has no parameters 0.0, 1.0"),
        (Activation("clamp", 2.0, 1.0), "clamp has no parameters"),
        (Activation("linear", float("nan")), "linear has no parameters"),
        (Activation("softplus"), "softplus has no parameters"),
    ],
)
def test_impossible(op: Activation, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        op.infer(TensorSpec((2, 3)))
