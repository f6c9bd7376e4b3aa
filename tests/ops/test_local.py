from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import Local2d, Local2dDgrad, Local2dWgrad
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients
from tests.zoo import Case


def peer(op: Local2d):  # type: ignore[no-untyped-def]
    """Patches by PyTorch's unfold, each multiplied with filters of its own."""

    def local(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        n, groups, kernel = x.shape[0], op.groups, tuple(w.shape[2:])
        p, q = op.window(kernel).output(tuple(x.shape[2:]))
        patches = torch.nn.functional.unfold(x, kernel, op.dilation, op.padding, op.stride)
        patches = patches.reshape(n, groups, -1, p * q)
        filters = w.reshape(p * q, groups, -1, patches.shape[2])
        return torch.einsum("ngim,mgki->ngkm", patches, filters).reshape(n, -1, p, q)

    return local


@pytest.mark.parametrize("case", zoo.LOCAL, ids=str)
def test_forward_and_gradients(case: Case) -> None:
    assert isinstance(case.op, Local2d)
    check(case.op, case.inputs(), peer(case.op))


def test_equal_filters_are_a_convolution() -> None:
    from convloom.ops import Conv2d

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 6, 5)), rng.normal(size=(4, 3, 3, 3))
    everywhere = np.tile(w, (12, 1, 1, 1))
    np.testing.assert_allclose(
        evaluate(Local2d(), x, everywhere)[0], evaluate(Conv2d(), x, w)[0], rtol=1e-12
    )


def test_empty_batch() -> None:
    x, w = np.ones((0, 2, 3, 3)), np.ones((8, 2, 2, 2))
    (y,) = evaluate(Local2d(), x, w)
    assert y.shape == (0, 2, 2, 2)
    grads = gradients(Local2d(), (x, w), y)
    assert grads[0].shape == x.shape
    assert not grads[1].any()


@pytest.mark.parametrize(
    ("x", "w", "op", "says"),
    [
        ((1, 9), (4, 1, 3, 3), Local2d(), r"needs images \(N, C, H, W\)"),
        ((1, 2, 4, 4), (9, 2, 3, 3), Local2d(), "9 filters cannot be shared out .* 2x2 pixels"),
        ((1, 2, 4, 4), (8, 3, 3, 3), Local2d(), "2 filters of 3 channels in 1 groups do not fit"),
        ((1, 4, 4, 4), (12, 2, 3, 3), Local2d(groups=2), "3 filters of 2 channels in 2 groups"),
        ((1, 2, 2, 2), (8, 2, 3, 3), Local2d(), "covers 3 cells of height"),
    ],
)
def test_impossible_shapes(x: zoo.Shape, w: zoo.Shape, op: Local2d, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        op.infer(TensorSpec(x), TensorSpec(w))


def test_flops() -> None:
    x, w, y = (TensorSpec(s) for s in ((2, 3, 4, 4), (20, 3, 3, 3), (2, 5, 2, 2)))
    assert Local2d().infer(x, w) == (y,)
    assert Local2d().flops((x, w), (y,)) == 2 * y.size * 27
    assert Local2dDgrad(size=(4, 4)).flops((y, w), (x,)) == 2 * y.size * 27
    assert Local2dWgrad(kernel=(3, 3)).flops((x, y), (w,)) == 2 * y.size * 27
