"""Padding, resizing and cuda-convnet's nailbed, mirror and blur."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import Blur, Mirror, Nailbed, Op, Pad2d, Pad2dGrad, Resize2d
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients
from tests.zoo import Case


def peer(op: Op) -> Callable[[torch.Tensor], torch.Tensor]:
    f = torch.nn.functional
    if isinstance(op, Pad2d):
        value = op.value if op.mode == "constant" else None
        return lambda x: f.pad(x, op.sides, op.mode, value)
    if isinstance(op, Resize2d):
        align = op.align_corners if op.mode == "bilinear" else None
        return lambda x: f.interpolate(x, op.to, mode=op.mode, align_corners=align)
    if isinstance(op, Mirror):
        return lambda x: x.flip(3)
    if isinstance(op, Nailbed):
        return lambda x: x[:, :, *(_nails(op.stride, size) for size in x.shape[2:])]
    assert isinstance(op, Blur)
    taps = torch.from_numpy(np.outer(op.weights, op.weights))

    def blurred(x: torch.Tensor) -> torch.Tensor:
        filters = taps.expand(x.shape[1], 1, *taps.shape)
        return f.conv2d(x, filters, padding=op.filter_size // 2, groups=x.shape[1])

    return blurred


def _nails(stride: int, size: int) -> slice:
    return slice((size - stride * (-(-size // stride) - 1)) // 2, None, stride)


@pytest.mark.parametrize("case", zoo.AXIS_MAPS, ids=str)
def test_forward_and_gradient(case: Case) -> None:
    check(case.op, case.inputs(), peer(case.op))


@pytest.mark.parametrize("case", zoo.AXIS_MAPS[::3], ids=str)
def test_what_is_not_finite_reaches_its_outputs_alone(case: Case) -> None:
    x = case.inputs()[0]
    x[0, 0, -1, 0], x[0, 0, 0, -1] = np.nan, np.inf
    (y,) = evaluate(case.op, x)
    np.testing.assert_array_equal(
        np.isfinite(y), np.isfinite(peer(case.op)(torch.from_numpy(x)).numpy())
    )


def test_empty_batch() -> None:
    for op in (Pad2d((1, 0, 2, 1)), Resize2d((4, 4), "bilinear"), Nailbed(2)):
        x = np.ones((0, 3, 5, 6))
        assert gradients(op, [x], evaluate(op, x)[0])[0].shape == x.shape


def test_a_blur_of_deviation_and_size() -> None:
    weights = Blur(5, 1.5).weights
    assert weights.sum() == pytest.approx(1)
    assert weights[0] / weights[2] == pytest.approx(np.exp(-4 / (2 * 1.5**2)))


ERRORS = [
    (Pad2d((1, 1, 1, 1)), (2, 75), r"shape \(N, C, H, W\), it got \(2, 75\)"),
    (Pad2d((1, 1, 1, 1), "wrap"), (2, 3, 5, 5), "mode must be 'constant', 'reflect' or"),
    (Pad2d((5, 0, 0, 0), "reflect"), (2, 3, 5, 5), "less than the input's width of 5, it is 5"),
    (Pad2d((0, 0, -1, 0), "replicate"), (2, 3, 5, 5), "needs sides of at least 0"),
    (Pad2d((-3, -2, 0, 0)), (2, 3, 5, 5), r"\(-3, -2, 0, 0\) leaves nothing of a width of 5"),
    (Resize2d((0, 4)), (2, 3, 5, 5), r"5x5 cannot be resized to \(0, 4\)"),
    (Resize2d((4, 4), "cubic"), (2, 3, 5, 5), "mode must be 'nearest' or 'bilinear'"),
    (Nailbed(0), (2, 3, 5, 5), "stride of at least 1"),
    (Blur(4, 1.0), (2, 3, 5, 5), "odd filter size of at most 9, it is 4"),
    (Blur(3, 0.0), (2, 3, 5, 5), "positive stdev"),
]


@pytest.mark.parametrize("op, shape, says", ERRORS)
def test_impossible_geometry(op: Op, shape: zoo.Shape, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        op.infer(TensorSpec(shape))


def test_gradients_refuse_shapes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="does not fit an input of"):
        Pad2dGrad((1, 1, 1, 1), size=(4, 4)).infer(TensorSpec((2, 3, 5, 5)))
