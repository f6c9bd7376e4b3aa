"""Spatial layers against golden vectors of cuda-convnet's (tests/golden.py)."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.ops import AddBias, AvgPool2d, Blur, Conv2d, Local2d, MaxPool2d, Mirror, Nailbed, Op
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
    maxabs = case.params["pool"] == "maxabs"
    return MaxPool2d(*window, outputs=(count, count), ties="all", magnitude=maxabs)


@pytest.mark.parametrize("name", golden.names("pool"))
def test_pool(name: str) -> None:
    case = golden.load(name)
    op, x = pool_of(case), case.images("x")
    close(evaluate(op, x)[0], case.images("y"))
    close(gradients(op, [x], case.images("g"))[0], case.images("dx"))


@pytest.mark.parametrize("name", golden.names("conv", "local"))
def test_convolution(name: str) -> None:
    """One input at a time: their outputs are summed. What overhangs on the far side is zeros."""
    case = golden.load(name)
    y = sum(forward(case, i)[0] for i in range(len(case.params["inputs"])))
    b = case.arrays["b"]
    shared = len(b) == case.arrays["y"].shape[0]
    bias = b if shared else b.reshape(case.arrays["y"].shape[:3])
    close(evaluate(AddBias(), y, bias)[0], case.images("y"))
    g = case.images("g")
    close(gradients(AddBias(), [y, bias], g)[1].ravel(), case.arrays["db"])
    for i in range(len(case.params["inputs"])):
        _, op, x, w = forward(case, i)
        grads = gradients(op, [x, w], g)
        height, width = case.arrays[f"x{i}"].shape[1:3]
        pad = case.params["inputs"][i]["pad"]
        inside = grads[0][:, :, pad : pad + height, pad : pad + width]
        close(channels_back(case, i, inside), case.images(f"dx{i}"))
        close(as_in_case(case, i, grads[1]), case.arrays[f"dw{i}"])


def forward(case: Golden, i: int):  # type: ignore[no-untyped-def]
    """(y, the op, its padded input, its filters) of input i."""
    params, x, w = case.params["inputs"][i], case.images(f"x{i}"), case.arrays[f"w{i}"]
    x = x[:, params["conns"]] if "conns" in params else x
    size, stride, pad, groups = (params[key] for key in ("fs", "stride", "pad", "groups"))
    modules = case.arrays["y"].shape[1]
    far = (modules - 1) * stride + size - x.shape[2] - pad
    padded = np.pad(x, ((0, 0), (0, 0), (pad, far), (pad, far)))
    kind = Conv2d if case.layer == "conv" else Local2d
    op = kind((stride, stride), groups=groups)
    # Rows are (module, channel, y, x), columns filters.
    by_module = w.reshape(-1, x.shape[1] // groups, size, size, w.shape[1])
    if case.layer == "conv":
        assert len(by_module) == 1
    filters = by_module.transpose(0, 4, 1, 2, 3).reshape(-1, *by_module.shape[1:4])
    return evaluate(op, padded, filters)[0], op, padded, filters


def as_in_case(case: Golden, i: int, dw: np.ndarray) -> np.ndarray:
    """A gradient of filters in the order of the case's own."""
    w = case.arrays[f"w{i}"]
    by_module = dw.reshape(-1, w.shape[1], *dw.shape[1:])
    return by_module.transpose(0, 2, 3, 4, 1).reshape(w.shape)


def channels_back(case: Golden, i: int, dx: np.ndarray) -> np.ndarray:
    """The gradient of channels that several groups read: the sum of theirs."""
    conns = case.params["inputs"][i].get("conns")
    if conns is None:
        return dx
    summed = np.zeros((dx.shape[0], case.arrays[f"x{i}"].shape[0], *dx.shape[2:]))
    for at, channel in enumerate(conns):
        summed[:, channel] += dx[:, at]
    return summed


@pytest.mark.parametrize("name", golden.names("nailbed", "blur", "href"))
def test_maps(name: str) -> None:
    case = golden.load(name)
    op: Op
    if case.layer == "nailbed":
        op = Nailbed(case.params["stride"])
    elif case.layer == "blur":
        op = Blur(case.params["filterSize"], case.params["stdev"])
        close(op.weights, case.arrays["filter"])
    else:
        op = Mirror()
    x = case.images("x")
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
