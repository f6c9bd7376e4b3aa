"""Spatial layers against golden vectors of cuda-convnet's (tests/golden.py)."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.ops import AvgPool2d, MaxPool2d
from tests import golden
from tests.golden import Golden
from tests.ops.gradcheck import close, evaluate, gradients


def pool_of(case: Golden) -> MaxPool2d | AvgPool2d:
    """The pool of a case: cuda-convnet's start is a padding, its number of windows a ceiling."""
    size, start, stride = (case.params[key] for key in ("sizeX", "start", "stride"))
    pixels = case.arrays["x"].shape[1]
    count = case.params.get("outputsX") or 1 + -(-(pixels - start - size) // stride)
    window = ((size, size), (stride, stride), (-start, -start))
    if case.params["pool"] == "avg":
        return AvgPool2d(*window, count_include_pad=False, outputs=(count, count))
    return MaxPool2d(*window, outputs=(count, count), ties="all")


@pytest.mark.parametrize("name", golden.names("pool"))
def test_pool(name: str) -> None:
    case = golden.load(name)
    if case.params["pool"] not in ("max", "avg"):
        pytest.skip("maxabs pooling occurs in no file")
    op, x = pool_of(case), case.images("x")
    close(evaluate(op, x)[0], case.images("y"))
    close(gradients(op, [x], case.images("g"))[0], case.images("dx"))


def test_pool_chain() -> None:
    """cuda-convnet's example network: pools of 16, 8, 4 pixels, where flooring gives 15, 7, 3."""
    sizes, size = [], 32
    for kind in (MaxPool2d, AvgPool2d, AvgPool2d):
        size = kind((3, 3), (2, 2), ceil_mode=True).window.output((size, size))[0]
        sizes.append(size)
    assert sizes == [16, 8, 4]


def test_averages_divide_by_the_pixels_inside_the_image() -> None:
    op = AvgPool2d((3, 3), (2, 2), count_include_pad=False, outputs=(3, 3))
    np.testing.assert_array_equal(evaluate(op, np.ones((1, 1, 6, 6)))[0], np.ones((1, 1, 3, 3)))
