"""Fused ops against the gradients that PyTorch takes of the same run of plain layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import (
    Conv2d,
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
    FusedLinear,
    FusedLinearDgrad,
    FusedLinearWgrad,
    Linear,
    PooledConv2dGrad,
    ReLUGrad,
)
from tests import zoo
from tests.ops.gradcheck import close, evaluate
from tests.zoo import Case

ACTIVATIONS = ("none", "relu")


def conv_of(case: Case) -> Conv2d:
    assert isinstance(case.op, Conv2d)
    return case.op


def geometry(op: Conv2d) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
    return op.stride, op.padding, op.dilation, op.groups


def poolable(case: Case) -> bool:
    (y,) = case.op.infer(*case.specs())
    return min(y.shape[2:]) >= 2


POOLABLE = [case for case in zoo.CONV if poolable(case)]


def leaves(inputs: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(value.copy()).requires_grad_() for value in inputs]


def torch_conv(op: Conv2d, tensors: list[torch.Tensor], activation: str) -> torch.Tensor:
    x, w, *b = tensors
    y = torch.nn.functional.conv2d(
        x, w, b[0] if b else None, op.stride, op.padding, op.dilation, op.groups
    )
    return torch.relu(y) if activation == "relu" else y


def grads_of(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    return [tensor.grad.numpy() for tensor in tensors]  # type: ignore[union-attr]


def arriving(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", zoo.CONV, ids=str)
def test_conv(case: Case, activation: str) -> None:
    op = conv_of(case)
    inputs = case.inputs()
    (y,) = evaluate(FusedConv2d(*geometry(op), activation), *inputs)
    close(y, torch_conv(op, leaves(inputs), activation).detach().numpy())


@pytest.mark.parametrize("mask", ACTIVATIONS)
@pytest.mark.parametrize("case", zoo.CONV, ids=str)
def test_conv_gradients(case: Case, mask: str) -> None:
    """The convolution's input is itself rectified when ``mask`` is "relu"."""
    op = conv_of(case)
    x, w, *_ = case.inputs()
    b = np.zeros(w.shape[0])
    raw, tw, tb = tensors = leaves([x, w, b])
    seen = torch.relu(raw) if mask == "relu" else raw
    y = torch_conv(op, [seen, tw, tb], "none")
    dy = arriving(tuple(y.shape))
    y.backward(torch.from_numpy(dy))
    dx, dw, db = grads_of(tensors)
    a = seen.detach().numpy()
    dgrad = FusedConv2dDgrad(*geometry(op), size=x.shape[2:], mask=mask)
    close(evaluate(dgrad, dy, w, *([a] if mask == "relu" else []))[0], dx)
    made = evaluate(FusedConv2dWgrad(*geometry(op), kernel=w.shape[2:]), a, dy)
    close(made[0], dw)
    close(made[1], db)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", POOLABLE, ids=str)
def test_conv_and_pool(case: Case, activation: str) -> None:
    op = conv_of(case)
    inputs = case.inputs()
    pooled, index = evaluate(FusedConv2d(*geometry(op), activation, pool=2), *inputs)
    y = torch_conv(op, leaves(inputs), activation)
    wanted, position = torch.nn.functional.max_pool2d(y, 2, return_indices=True)
    close(pooled, wanted.detach().numpy())
    rows, cols = np.divmod(position.numpy(), y.shape[3])
    np.testing.assert_array_equal(index, 2 * (rows % 2) + cols % 2)


@pytest.mark.parametrize("mask", ACTIVATIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", POOLABLE, ids=str)
def test_conv_and_pool_gradients(case: Case, activation: str, mask: str) -> None:
    op = conv_of(case)
    x, w, *_ = case.inputs()
    raw, tw, tb = tensors = leaves([x, w, np.full(w.shape[0], 0.1)])
    seen = torch.relu(raw) if mask == "relu" else raw
    y = torch.nn.functional.max_pool2d(torch_conv(op, [seen, tw, tb], activation), 2)
    dyp = arriving(tuple(y.shape))
    y.backward(torch.from_numpy(dyp))
    dx, dw, db = grads_of(tensors)

    a = seen.detach().numpy()
    forward = FusedConv2d(*geometry(op), activation, pool=2)
    pooled, index = evaluate(forward, a, w, tb.detach().numpy())
    if activation == "relu":
        (dyp,) = evaluate(ReLUGrad(), dyp, pooled)
    rule = PooledConv2dGrad(*geometry(op), size=x.shape[2:], kernel=w.shape[2:], mask=mask)
    made = evaluate(rule, a, w, dyp, index)
    for got, wanted in zip(made, (dw, db, dx), strict=True):
        close(got, wanted)


def test_pooled_gradients_that_nobody_wants_are_left_out() -> None:
    x, w = zoo.CONV[2].inputs()[:2]
    op = conv_of(zoo.CONV[2])
    pooled, index = evaluate(FusedConv2d(*geometry(op), pool=2), x, w)
    sizes = {"size": x.shape[2:], "kernel": w.shape[2:]}
    dw, db, dx = evaluate(PooledConv2dGrad(*geometry(op), **sizes), x, w, pooled, index)
    for has_bias in (False, True):
        for needs_dx in (False, True):
            rule = PooledConv2dGrad(*geometry(op), **sizes, has_bias=has_bias, needs_dx=needs_dx)
            made = evaluate(rule, x, w, pooled, index)
            wanted = [dw, *([db] if has_bias else []), *([dx] if needs_dx else [])]
            assert [m.tolist() for m in made] == [v.tolist() for v in wanted]


def test_ties_and_nan_in_a_pool() -> None:
    """The first of equal values wins; a NaN beats all, the last NaN the others."""
    nan = np.nan
    windows = [[1, 1, 1, 1], [0, 2, 2, 0], [-1, -2, -3, -4], [nan, 9, 9, 9], [nan, 9, nan, 1]]
    x = np.array(windows).reshape(5, 1, 2, 2)
    one = np.ones((1, 1, 1, 1))
    y, index = evaluate(FusedConv2d(pool=2), x, one)
    assert index.ravel().tolist() == [0, 1, 0, 0, 2]
    np.testing.assert_array_equal(y.ravel(), [1, 2, -1, nan, nan])
    y, index = evaluate(FusedConv2d(activation="relu", pool=2), x, one)
    assert index.ravel().tolist() == [0, 1, 0, 0, 2]
    np.testing.assert_array_equal(y.ravel(), [1, 2, 0, nan, nan])


def test_windows_that_would_overhang_are_dropped() -> None:
    x, one = zoo.distinct((1, 1, 5, 7)), np.ones((1, 1, 1, 1))
    y, index = evaluate(FusedConv2d(pool=2), x, one)
    assert y.shape == (1, 1, 2, 3)
    rule = PooledConv2dGrad(size=(5, 7), kernel=(1, 1))
    _, _, dx = evaluate(rule, x, one, np.ones_like(y), index)
    assert not dx[:, :, 4].any()
    assert not dx[:, :, :, 6].any()
    assert dx.sum() == y.size


@pytest.mark.parametrize("case", zoo.LINEAR, ids=str)
def test_linear(case: Case) -> None:
    inputs = case.inputs()
    for activation in ACTIVATIONS:
        (y,) = evaluate(FusedLinear(activation), *inputs)
        (plain,) = Linear().reference(*inputs)
        wanted = torch.relu(torch.from_numpy(plain)).numpy() if activation == "relu" else plain
        np.testing.assert_array_equal(y, wanted)
    x, w, *_ = inputs
    dy = arriving((x.shape[0], w.shape[0]))
    close(evaluate(FusedLinearDgrad(), dy, w)[0], dy @ w)
    close(evaluate(FusedLinearDgrad("relu"), dy, w, x)[0], np.where(x > 0, dy @ w, 0))
    dw, db = evaluate(FusedLinearWgrad(), x, dy)
    close(dw, dy.T @ x)
    close(db, dy.sum(axis=0))


def test_empty_batch() -> None:
    x, w, b = np.ones((0, 2, 6, 6)), np.ones((3, 2, 3, 3)), np.ones(3)
    y, index = evaluate(FusedConv2d(activation="relu", pool=2), x, w, b)
    assert y.shape == (0, 3, 2, 2)
    rule = PooledConv2dGrad(size=(6, 6), kernel=(3, 3), mask="relu")
    dw, db, dx = evaluate(rule, x, w, y, index)
    assert not dw.any()
    assert not db.any()
    assert dx.shape == x.shape


X, W, Y = TensorSpec((2, 3, 6, 6)), TensorSpec((4, 3, 3, 3)), TensorSpec((2, 4, 4, 4))
HALF = TensorSpec((2, 4, 2, 2))


@pytest.mark.parametrize(
    "op, inputs, message",
    [
        (FusedConv2d(activation="tanh"), (X, W), "must be one of 'none', 'relu', 'leaky_relu'"),
        (FusedConv2d(activation="clamp", pool=2), (X, W), "pool follows 'none' or 'relu'"),
        (FusedConv2d(pool=3), (X, W), "pool must be 0 or 2"),
        (FusedConv2dDgrad(size=(6, 6), mask="relu"), (Y, W), "takes 1 mask inputs, it got 0"),
        (FusedConv2dDgrad(size=(6, 6)), (Y, W, X), "takes 0 mask inputs, it got 1"),
        (FusedConv2dDgrad(size=(6, 6), mask="relu"), (Y, W, Y), "does not fit the gradient"),
        (PooledConv2dGrad(size=(6, 6), kernel=(3, 3)), (X, W, Y, Y), "must have shape"),
        (PooledConv2dGrad(size=(5, 6), kernel=(3, 3)), (X, W, HALF, HALF), "this op is made for"),
        (FusedLinear("tanh"), (TensorSpec((2, 3)), TensorSpec((4, 3))), "activation must be"),
    ],
)
def test_inputs_that_do_not_fit(op, inputs, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ShapeError, match=message):
        op.infer(*inputs)


def test_flops_are_those_of_the_parts() -> None:
    taps = 2 * Y.size * 27
    b, index = TensorSpec((4,)), TensorSpec(HALF.shape, "uint8")
    relu = FusedConv2d(activation="relu")
    assert relu.flops((X, W, b), (Y,)) == taps + 2 * Y.size
    pool = FusedConv2d(pool=2)
    assert pool.flops((X, W), (HALF, index)) == taps + 4 * HALF.size
    dgrad = FusedConv2dDgrad(size=(6, 6), mask="relu")
    assert dgrad.flops((Y, W, X), (X,)) == taps + X.size
    assert FusedConv2dWgrad(kernel=(3, 3)).flops((X, Y), (W, b)) == taps + Y.size
    sparse = PooledConv2dGrad(size=(6, 6), kernel=(3, 3), mask="relu")
    assert sparse.flops((X, W, HALF, index), (W, b, X)) == taps // 2 + HALF.size + X.size
    x, w, y = TensorSpec((7, 3)), TensorSpec((5, 3)), TensorSpec((7, 5))
    assert FusedLinear("relu").flops((x, w), (y,)) == 2 * 105 + 35
    assert FusedLinearDgrad("relu").flops((y, w, x), (x,)) == 2 * 105 + 21
    assert FusedLinearWgrad().flops((x, y), (w, TensorSpec((5,)))) == 2 * 105 + 35
