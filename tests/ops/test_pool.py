from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    AvgPool2dGrad,
    MaxPool2d,
    MaxPool2dGrad,
    Op,
)
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients
from tests.zoo import Case


def torch_max_pool(op: MaxPool2d, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.nn.functional.max_pool2d(
        x, op.kernel, op.stride, op.padding, op.dilation, op.ceil_mode, return_indices=True
    )


def torch_avg_pool(op: AvgPool2d, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(
        x,
        op.kernel,
        op.stride,
        op.padding,
        op.ceil_mode,
        op.count_include_pad,
        op.divisor_override,
    )


def clipped(op: MaxPool2d | AvgPool2d, x: torch.Tensor) -> torch.Tensor:
    """A pool of fixed ``outputs`` in PyTorch: window by window, each clipped to the image."""
    rows = []
    for p in range(op.outputs[0]):  # type: ignore[index]
        row = []
        for q in range(op.outputs[1]):  # type: ignore[index]
            starts = [at * op.stride[i] - op.padding[i] for i, at in enumerate((p, q))]
            (top, left), (high, wide) = starts, op.kernel
            cells = x[:, :, max(top, 0) : top + high, max(left, 0) : left + wide]
            row.append(pooled(op, cells.flatten(2)))
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


def pooled(op: MaxPool2d | AvgPool2d, cells: torch.Tensor) -> torch.Tensor:
    if isinstance(op, AvgPool2d):
        return cells.mean(2)
    if op.magnitude:
        return cells.gather(2, cells.abs().argmax(2, keepdim=True))[..., 0]
    return cells.amax(2)


@pytest.mark.parametrize("case", zoo.MAX_POOL, ids=str)
def test_max_pool(case: Case) -> None:
    op = case.op
    assert isinstance(op, MaxPool2d)
    x = zoo.distinct(case.shapes[0])
    check(op, [x], lambda t: torch_max_pool(op, t)[0])
    _, index = evaluate(op, x)
    np.testing.assert_array_equal(index, torch_max_pool(op, torch.from_numpy(x))[1].numpy())


@pytest.mark.parametrize("case", zoo.MAX_POOL, ids=str)
@pytest.mark.parametrize("kind", ["ties", "nan", "-inf"])
def test_max_pool_of_hard_values(case: Case, kind: str) -> None:
    """Few different values, so that ties, several NaN and windows of -inf alone are frequent."""
    op = case.op
    assert isinstance(op, MaxPool2d)
    shape = (min(case.shapes[0][0], 2), *case.shapes[0][1:])
    values = {"ties": [0.0, 1.0], "nan": [np.nan, 0.0, 1.0], "-inf": [-np.inf] * 9 + [0.0]}[kind]
    x = np.random.default_rng(5).choice(values, shape)
    y, index = evaluate(op, x)
    wanted, wanted_index = torch_max_pool(op, torch.from_numpy(x))
    np.testing.assert_array_equal(y, wanted.numpy())
    np.testing.assert_array_equal(index, wanted_index.numpy())


@pytest.mark.parametrize("case", zoo.AVG_POOL, ids=str)
def test_avg_pool(case: Case) -> None:
    op = case.op
    assert isinstance(op, AvgPool2d)
    check(op, case.inputs(), lambda t: torch_avg_pool(op, t))


@pytest.mark.parametrize("case", zoo.FOURS_POOL, ids=str)
def test_pools_of_channels_in_fours(case: Case) -> None:
    op = case.op
    if isinstance(op, MaxPool2d):
        check(op, [zoo.distinct(case.shapes[0])], lambda t: torch_max_pool(op, t)[0])
    else:
        assert isinstance(op, AvgPool2d)
        check(op, case.inputs(), lambda t: torch_avg_pool(op, t))


@pytest.mark.parametrize("case", zoo.CLIPPED_POOL, ids=str)
def test_windows_of_a_fixed_number_are_clipped_to_the_image(case: Case) -> None:
    op = case.op
    assert isinstance(op, MaxPool2d | AvgPool2d)
    # So far off that no two magnitudes are equal.
    check(op, [zoo.distinct(case.shapes[0]) + 1 / 128], lambda t: clipped(op, t))


@pytest.mark.parametrize(
    ("values", "y", "index"),
    [([1, -3, 3, 2], 3, 2), ([3, -3, 1, 2], -3, 1), ([np.nan, -np.inf, 5, 0], np.nan, 0)],
)
def test_of_equal_magnitudes_the_last_wins(values: list[float], y: float, index: int) -> None:
    x = np.array(values, float).reshape(1, 1, 2, 2)
    window = ((2, 2), (1, 1))
    found = evaluate(MaxPool2d(*window, magnitude=True), x)
    np.testing.assert_array_equal([one.item() for one in found], [y, index])
    dx = gradients(MaxPool2d(*window, magnitude=True, ties="all"), [x], np.ones((1, 1, 1, 1)))[0]
    np.testing.assert_array_equal(dx.ravel(), np.arange(4) == index)


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_every_tie_receives_the_full_gradient(value: float) -> None:
    """Also where the maximum is NaN: so that what is not finite is never lost."""
    x = np.full((1, 1, 5, 5), value)
    dx = gradients(MaxPool2d((3, 3), (2, 2), ties="all"), [x], np.ones((1, 1, 2, 2)))[0]
    once = np.array([1, 1, 2, 1, 1.0])
    np.testing.assert_array_equal(dx[0, 0], np.outer(once, once))


def torch_adaptive(op: Op, x: torch.Tensor) -> torch.Tensor:
    f = torch.nn.functional
    if isinstance(op, AdaptiveMaxPool2d):
        return f.adaptive_max_pool2d(x, op.output)
    assert isinstance(op, AdaptiveAvgPool2d)
    return f.adaptive_avg_pool2d(x, op.output)


@pytest.mark.parametrize("case", zoo.ADAPTIVE_POOL, ids=str)
def test_adaptive_pool(case: Case) -> None:
    x = zoo.distinct(case.shapes[0])
    check(case.op, [x], lambda t: torch_adaptive(case.op, t))
    if isinstance(case.op, AdaptiveMaxPool2d):
        wanted = torch.nn.functional.adaptive_max_pool2d(
            torch.from_numpy(x), case.op.output, return_indices=True
        )[1]
        np.testing.assert_array_equal(evaluate(case.op, x)[1], wanted.numpy())


@pytest.mark.parametrize(
    "size, kernel, stride, padding, wanted",
    [((5, 5), 2, 2, 1, (3, 3)), ((6, 7), 1, 2, 0, (3, 4)), ((5, 5), 3, 3, 1, (2, 2))],
)
@pytest.mark.parametrize("kind", [MaxPool2d, AvgPool2d])
def test_ceil_mode_never_keeps_a_window_that_starts_in_the_padding(  # type: ignore[no-untyped-def]
    size, kernel, stride, padding, wanted, kind
) -> None:
    op = kind((kernel,) * 2, (stride,) * 2, (padding,) * 2, ceil_mode=True)
    y = evaluate(op, -1 - np.random.default_rng(0).random((2, 3, *size)))[0]
    assert y.shape == (2, 3, *wanted)
    assert np.isfinite(y).all()


def test_ties_in_overlapping_windows_go_to_the_first_in_scan_order() -> None:
    op = MaxPool2d((3, 3), (2, 2))
    dx = gradients(op, [np.zeros((1, 1, 5, 5))], np.ones((1, 1, 2, 2)))[0]
    wanted = np.zeros((5, 5))
    wanted[::2, ::2][:2, :2] = 1
    np.testing.assert_array_equal(dx[0, 0], wanted)

    row = np.array([5.0, 3, 1, 2, 5]).reshape(1, 1, 1, 5)
    dx = gradients(MaxPool2d((1, 2), (1, 1)), [row], np.ones((1, 1, 1, 4)))[0]
    np.testing.assert_array_equal(dx.ravel(), [1, 1, 0, 1, 1])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gradients_that_are_not_finite_reach_the_winner_alone(value: float) -> None:
    x = zoo.distinct((1, 1, 4, 4))
    dx = gradients(MaxPool2d((2, 2), (2, 2)), [x], np.full((1, 1, 2, 2), value))[0]
    assert (~np.isfinite(dx)).sum() == 4
    assert (dx == 0).sum() == 12


def test_values_that_are_not_finite_pass_the_average() -> None:
    x = np.ones((1, 1, 4, 4))
    x[0, 0, 0, 0], x[0, 0, 3, 3] = np.nan, np.inf
    (y,) = evaluate(AvgPool2d((2, 2), (2, 2)), x)
    np.testing.assert_array_equal(y[0, 0], [[np.nan, 1], [1, np.inf]])


@pytest.mark.parametrize(
    "op",
    [
        *(MaxPool2d((2, 2), (2, 2), ties=ties) for ties in ("first", "all")),
        *(AvgPool2d((2, 2), (2, 2)), AdaptiveAvgPool2d((2, 3)), AdaptiveMaxPool2d((2, 3))),
    ],
    ids=str,
)
def test_empty_batch(op: Op) -> None:
    x = np.ones((0, 3, 5, 7))
    y = evaluate(op, x)[0]
    assert y.shape == (0, 3, 2, 3)
    assert gradients(op, [x], y)[0].shape == x.shape


def max_pool(kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> MaxPool2d:
    return MaxPool2d((kernel,) * 2, (stride,) * 2, (padding,) * 2, (dilation,) * 2)


ERRORS = [
    (max_pool(3), (2, 2), "covers 3 cells of height"),
    (max_pool(0), (5, 5), "kernel size must be at least 1"),
    (max_pool(2, stride=0), (5, 5), "stride must be at least 1"),
    (max_pool(2, padding=-1), (5, 5), "padding must be at least 0"),
    (max_pool(2, dilation=0), (5, 5), "dilation must be at least 1"),
    (max_pool(2, dilation=2**31 - 1), (5, 5), "covers 2147483648 cells of height"),
    (max_pool(2, padding=2), (5, 5), "padding must be at most half"),
    (max_pool(3, padding=2), (5, 5), "padding must be at most half"),
    (max_pool(3, padding=2, dilation=2), (9, 9), "padding must be at most half"),
    (max_pool(2, padding=1, dilation=9), (8, 8), "would see only padding"),
    (max_pool(2, padding=1), (0, 5), "would see only padding"),
    (AvgPool2d((3, 3), (1, 1), (2, 2)), (5, 5), "padding must be at most half"),
    (AvgPool2d((3, 3), (1, 1)), (5, 2), "covers 3 cells of width"),
    (AvgPool2d((2, 2), (1, 1), divisor_override=0), (5, 5), "must not be 0"),
    (AvgPool2d((2, 2), (1, 1), outputs=(2, 2)), (5, 5), "need count_include_pad=False"),
    (MaxPool2d((2, 2), (3, 3), outputs=(3, 2)), (5, 5), "would see only padding"),
    (MaxPool2d((2, 2), (3, 3), (2, 0), outputs=(2, 2)), (5, 5), "would see only padding"),
    (MaxPool2d((2, 2), (3, 3), (-5, 0), outputs=(1, 2)), (5, 5), "would see only padding"),
    (MaxPool2d((2, 2), (3, 3), outputs=(0, 2)), (5, 5), "outputs must be at least 1"),
    (MaxPool2d((2, 2), (3, 3), ties="some"), (5, 5), "ties must be 'first' or 'all'"),
    (AdaptiveAvgPool2d((0, 2)), (5, 5), "to 0x2 is impossible"),
    (AdaptiveMaxPool2d((1, 1)), (5, 0), "of 5x0 to 1x1 is impossible"),
]


@pytest.mark.parametrize("op, size, message", ERRORS)
def test_impossible_geometry(  # type: ignore[no-untyped-def]
    op: Op, size: tuple[int, int], message: str
) -> None:
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((2, 3, *size)), Role.INPUT)
    with pytest.raises(ShapeError, match=f"layer 'pool': .*{message}"):
        builder.add(op, ("x",), layer="pool")


def test_an_input_without_image_axes() -> None:
    with pytest.raises(ShapeError, match=r"shape \(N, C, H, W\), it got \(2, 75\)"):
        max_pool(2).infer(TensorSpec((2, 75)))


def test_gradient_ops_refuse_shapes_that_do_not_fit() -> None:
    dy, index = TensorSpec((2, 3, 2, 2)), TensorSpec((2, 3, 2, 3), "int32")
    with pytest.raises(ShapeError, match="does not fit the indices"):
        MaxPool2dGrad((4, 6), (2, 2), (2, 2)).infer(dy, index)
    with pytest.raises(ShapeError, match="does not fit the maxima"):
        MaxPool2dGrad((4, 6), (2, 2), (2, 2), ties="all").infer(dy, dy, index)
    with pytest.raises(ShapeError, match="is not of the size"):
        MaxPool2dGrad((4, 6), (2, 2), (2, 2), ties="all").infer(dy, dy, dy)
    with pytest.raises(ShapeError, match="does not fit an input of"):
        AvgPool2dGrad((2, 2), (2, 2), size=(4, 6)).infer(dy)


def test_flops_and_bytes() -> None:
    x, y, index = (
        TensorSpec((2, 3, 8, 8)),
        TensorSpec((2, 3, 4, 4)),
        TensorSpec((2, 3, 4, 4), "int32"),
    )
    op = MaxPool2d((2, 2), (2, 2))
    assert op.infer(x) == (y, index)
    assert op.flops((x,), (y, index)) == 4 * y.size
    assert op.nbytes((x,), (y, index)) == 4 * (x.size + 2 * y.size)
    assert MaxPool2dGrad((8, 8), (2, 2), (2, 2)).flops((y, index), (x,)) == y.size
