"""Local response normalisation: PyTorch's form, and cuda-convnet's against its golden vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import ContrastNorm2d, LocalResponseNorm, Op, ResponseNorm2d
from tests import golden, zoo
from tests.ops.gradcheck import check, check_differences, close, evaluate, gradients
from tests.zoo import Shape


@pytest.mark.parametrize("shape, op", zoo.RESPONSE_NORM, ids=str)
def test_as_pytorch_computes_it(shape: Shape, op: LocalResponseNorm) -> None:
    def peer(x: torch.Tensor) -> torch.Tensor:
        if op.blocked:
            squares = x.square().split(op.size, dim=1)
            sums = [part.sum(dim=1, keepdim=True).expand_as(part) for part in squares]
            return x * (op.k + op.alpha / op.size * torch.cat(sums, 1)) ** -op.beta
        return torch.nn.functional.local_response_norm(x, op.size, op.alpha, op.beta, op.k)

    x = 2 * np.random.default_rng(2).standard_normal(shape)
    check(op, [x], peer, tolerance=1e-10)


@pytest.mark.parametrize("shape, size", zoo.MAP_NORM, ids=str)
def test_within_a_map(shape: Shape, size: int) -> None:
    """Against windows summed by PyTorch's pooling; contrast holds the means constant."""
    x = 2 * np.random.default_rng(3).standard_normal(shape)
    low, high = size // 2, size - 1 - size // 2

    def window(v: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(v, (low, high, low, high))
        return torch.nn.functional.avg_pool2d(padded, size, 1) * size**2

    def response(v: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        return v * (1.5 + 0.5 / size**2 * window(squared.square())) ** -0.75

    def contrast(v: torch.Tensor) -> torch.Tensor:
        mean = window(v) / window(torch.ones_like(v))
        return response(v, v - mean.detach())

    check(ResponseNorm2d(size, 0.5, 0.75, 1.5), [x], lambda v: response(v, v), tolerance=1e-10)
    op = ContrastNorm2d(size, 0.5, 0.75, 1.5)
    dy = np.random.default_rng(99).standard_normal(shape)
    v = torch.from_numpy(x.copy()).requires_grad_()
    y = contrast(v)
    y.backward(torch.from_numpy(dy))
    assert v.grad is not None
    close(evaluate(op, x)[0], y.detach().numpy(), 1e-10)
    close(gradients(op, [x], dy)[0], v.grad.numpy(), 1e-10)


@pytest.mark.parametrize("shape, size", zoo.MAP_NORM, ids=str)
def test_contrast_with_means_of_another_input(shape: Shape, size: int) -> None:
    """Of itself it is the operation; with means that stay it has the gradient that trains."""
    op = ContrastNorm2d(size, 0.5, 0.75, 1.5)
    x, direction, dy = (np.random.default_rng(at).standard_normal(shape) for at in range(3))
    close(op.with_means(x, x), op.reference(x)[0], 1e-12)
    step = 1e-5
    ahead, behind = (op.with_means(x + side * step * direction, x) for side in (1, -1))
    slope = float((gradients(op, [x], dy)[0] * direction).sum())
    assert float(((ahead - behind) * dy).sum()) / (2 * step) == pytest.approx(slope, 1e-6, 1e-6)


def golden_op(layer: str, params: dict[str, Any]) -> Op:
    numbers = (params["size"], params["scale"], params["pow"])
    if layer == "cmrnorm":
        return LocalResponseNorm(*numbers, k=params["minDiv"], blocked=params["blocked"])
    return {"rnorm": ResponseNorm2d, "cnorm": ContrastNorm2d}[layer](*numbers)


@pytest.mark.parametrize("name", golden.names("rnorm", "cnorm", "cmrnorm"))
def test_golden_vectors_of_cuda_convnet(name: str) -> None:
    case = golden.load(name)
    op = golden_op(case.layer, case.params)
    close(evaluate(op, case.images("x"))[0], case.images("y"), 1e-12)
    dx = gradients(op, [case.images("x")], case.images("g"))[0]
    close(dx, case.images("dx"), 1e-12)


def test_contrast_says_that_its_gradient_is_not_the_true_one() -> None:
    op = ContrastNorm2d(3, 0.5)
    assert "not a true gradient" in op.gradient_note
    assert ResponseNorm2d.gradient_note == LocalResponseNorm.gradient_note == ""
    x, dy = np.random.default_rng(0).standard_normal((2, 1, 2, 5, 5))
    with pytest.raises(AssertionError):
        check_differences(op, [x], dy, 0, gradients(op, [x], dy)[0])


@pytest.mark.parametrize("op", [LocalResponseNorm(), ResponseNorm2d(), ContrastNorm2d()], ids=str)
def test_nan_and_what_does_not_fit(op: LocalResponseNorm) -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 8, 9))
    x[0, 3, 4, 4] = np.nan
    y = evaluate(replace(op, size=3), x)[0]
    assert np.isnan(y[0, 3, 4, 4])
    assert np.isfinite(y[1]).all()
    assert np.isfinite(y[0, 0]).all()
    with pytest.raises(ShapeError, match="size"):
        replace(op, size=0).infer(TensorSpec(x.shape))
    with pytest.raises(ShapeError, match="shape"):
        op.infer(TensorSpec((3,)))
