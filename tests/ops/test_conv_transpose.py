"""Transposed convolution: Conv2dDgrad as a layer of its own, and biases that stand alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import AddBias, Conv2dDgrad, UnsharedBiasGrad
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients
from tests.zoo import Case


def peer(op: Conv2dDgrad, size: tuple[int, ...], kernel: tuple[int, ...]):  # type: ignore[no-untyped-def]
    """PyTorch's transposed convolution of maps of ``size``."""
    more = [
        op.size[i]
        - ((size[i] - 1) * op.stride[i] - 2 * op.padding[i] + op.dilation[i] * (kernel[i] - 1) + 1)
        for i in range(2)
    ]

    def conv_transpose(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv_transpose2d(
            x, w, None, op.stride, op.padding, more, op.groups, op.dilation
        )

    return conv_transpose


@pytest.mark.parametrize("case", zoo.CONV_TRANSPOSE, ids=str)
def test_forward_and_gradients(case: Case) -> None:
    assert isinstance(case.op, Conv2dDgrad)
    check(case.op, case.inputs(), peer(case.op, case.shapes[0][2:], case.shapes[1][2:]))


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    case = zoo.CONV_TRANSPOSE[0]
    (y,) = case.op.infer(*case.specs())
    assert list(gradients(case.op, case.inputs(), np.ones(y.shape), wanted=[0])) == [0]
    assert list(gradients(case.op, case.inputs(), np.ones(y.shape), wanted=[1])) == [1]


@pytest.mark.parametrize(
    ("dy", "w", "op", "says"),
    [
        ((1, 4), (4, 2, 3, 3), Conv2dDgrad(size=(5, 5)), r"\(N, C, H, W\), it got \(1, 4\)"),
        ((1, 4, 3, 3), (5, 2, 3, 3), Conv2dDgrad(size=(5, 5)), "do not fit the 4 channels"),
        ((1, 4, 3, 3), (4, 2, 3, 3), Conv2dDgrad(groups=3, size=(5, 5)), "in 3 groups"),
        ((1, 4, 3, 3), (4, 2, 3, 3), Conv2dDgrad(size=(6, 5)), "maps of 3x3 are not what filters"),
    ],
)
def test_impossible_shapes(dy: zoo.Shape, w: zoo.Shape, op: Conv2dDgrad, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        op.infer(TensorSpec(dy), TensorSpec(w))


@pytest.mark.parametrize("shape", [(31, 3, 5, 7), (1, 17, 2, 3), (33, 10), (2, 5, 4)], ids=str)
@pytest.mark.parametrize("unshared", [False, True])
def test_bias(shape: zoo.Shape, unshared: bool) -> None:
    rng = np.random.default_rng(0)
    x, b = rng.normal(size=shape), rng.normal(size=shape[1:] if unshared else shape[1:2])
    ones = (1,) * (len(shape) - 1 - b.ndim)
    check(AddBias(), [x, b], lambda x, b: x + b.reshape(*b.shape, *ones))


def test_bias_of_an_empty_batch() -> None:
    x, b = np.ones((0, 3, 2, 2)), np.ones((3, 2, 2))
    (y,) = evaluate(AddBias(), x, b)
    assert y.shape == x.shape
    assert not gradients(AddBias(), [x, b], y)[1].any()
    assert evaluate(UnsharedBiasGrad(), x)[0].shape == (3, 2, 2)


@pytest.mark.parametrize("bias", [(4,), (3, 2), (1, 2, 2)])
def test_a_bias_that_does_not_fit(bias: zoo.Shape) -> None:
    with pytest.raises(ShapeError, match=r"must have shape \(3,\), or \(3, 2, 2\)"):
        AddBias().infer(TensorSpec((2, 3, 2, 2)), TensorSpec(bias))
