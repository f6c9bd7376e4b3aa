"""3x3 convolution by minimal filtering: exact on small integers, right around Inf and NaN."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from convloom.backends.cpu.selectors.winograd import select_winograd
from convloom.ops import (
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
    Op,
)
from tests.backends.harness import outcome

Shapes = tuple[tuple[int, ...], ...]
#: Odd and even maps, all paddings, one and two vectors of filters, epilogues of every kind.
CASES: list[tuple[Op, Shapes]] = [
    (FusedConv2d(activation="relu", pool=2), ((2, 16, 26, 26), (32, 16, 3, 3), (32,))),
    (FusedConv2d(activation="none", pool=2), ((1, 16, 9, 11), (16, 16, 3, 3), (16,))),
    (
        FusedConv2d(padding=(1, 1), activation="relu", pool=0),
        ((2, 32, 8, 9), (48, 32, 3, 3), (48,)),
    ),
    (Conv2d(padding=(1, 2)), ((3, 64, 13, 13), (64, 64, 3, 3))),
    (Conv2d(), ((33, 16, 4, 5), (16, 16, 3, 3), (16,))),
    (Conv2dDgrad(padding=(1, 1), size=(8, 9)), ((2, 48, 8, 9), (48, 32, 3, 3))),
    (Conv2dDgrad(padding=(2, 2), size=(5, 6)), ((2, 16, 7, 8), (16, 32, 3, 3))),
    (
        FusedConv2dDgrad(size=(10, 11), mask="relu"),
        ((2, 48, 8, 9), (48, 32, 3, 3), (2, 32, 10, 11)),
    ),
    (
        FusedConv2d(padding=(2, 2), groups=2, activation="relu", pool=2),
        ((2, 32, 9, 10), (64, 16, 5, 5), (64,)),
    ),
    (Conv2d(padding=(1, 2)), ((2, 16, 9, 11), (32, 16, 5, 5), (32,))),
    (Conv2d(groups=3), ((2, 48, 7, 8), (48, 16, 3, 5))),
    (Conv2dDgrad(padding=(2, 2), groups=2, size=(8, 9)), ((2, 64, 8, 9), (64, 16, 5, 5))),
    (Conv2dDgrad(groups=2, size=(11, 10)), ((2, 32, 7, 6), (32, 32, 5, 5))),
    (
        FusedConv2dDgrad(padding=(1, 1), groups=2, size=(8, 9), mask="relu"),
        ((2, 32, 8, 9), (32, 16, 3, 3), (2, 32, 8, 9)),
    ),
    (FusedConv2dWgrad(padding=(1, 1), kernel=(3, 3)), ((3, 32, 8, 9), (3, 48, 8, 9))),
    (Conv2dWgrad(kernel=(3, 3)), ((31, 16, 13, 12), (31, 16, 11, 10))),
    (FusedConv2dWgrad(padding=(2, 2), kernel=(3, 3)), ((1, 16, 7, 6), (1, 96, 9, 8))),
]


def integers(shapes: Shapes) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


def reals(shapes: Shapes) -> list[np.ndarray]:
    draw = np.random.default_rng(1)
    return [draw.standard_normal(shape, dtype=np.float32) for shape in shapes]


@pytest.mark.parametrize(("op", "shapes"), CASES, ids=lambda value: str(value)[:60])
def test_exact_on_small_integers(op: Op, shapes: Shapes) -> None:
    inputs = integers(shapes)
    ran = outcome(op, *inputs)
    assert ran.rung == "winograd"
    for found, expected in zip(ran.outputs, op.reference(*inputs), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("op", "shapes"), CASES, ids=lambda value: str(value)[:60])
def test_close_on_random_data_and_the_same_for_any_thread_count(op: Op, shapes: Shapes) -> None:
    inputs = reals(shapes)
    expected = op.reference(*(value.astype(np.float64) for value in inputs))
    runs = [outcome(op, *inputs, threads=threads).outputs for threads in (1, 2, 3)]
    error = np.linalg.norm(runs[0][0] - expected[0]) / np.linalg.norm(expected[0])
    assert error < 1e-6
    for one, other in itertools.product(runs[:1], runs[1:]):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("op", "shapes"), CASES, ids=lambda value: str(value)[:60])
def test_inf_and_nan_reach_what_they_reach_in_the_direct_form(op: Op, shapes: Shapes) -> None:
    inputs = reals(shapes)
    inputs[0][0, 3, 2, 2] = np.inf
    inputs[0][-1, 0, 3, 3] = np.nan
    (found, *_), (expected, *_) = outcome(op, *inputs).outputs, op.reference(*inputs)
    assert not np.isfinite(expected).all()
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(found), kind(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (Conv2d(stride=(2, 2)), ((1, 16, 9, 9), (16, 16, 3, 3))),
        (Conv2d(dilation=(2, 2)), ((1, 16, 9, 9), (16, 16, 3, 3))),
        (Conv2d(groups=2), ((1, 16, 9, 9), (32, 8, 3, 3))),
        (Conv2d(), ((1, 3, 9, 9), (16, 3, 3, 3))),
        (Conv2d(), ((1, 16, 9, 9), (17, 16, 3, 3))),
        (Conv2d(), ((1, 16, 9, 9), (16, 16, 4, 4))),
        (Conv2dDgrad(padding=(3, 3), size=(5, 5)), ((1, 16, 9, 9), (16, 16, 3, 3))),
    ],
)
def test_other_convolutions_are_left_to_other_kernels(op: Op, shapes: Shapes) -> None:
    ran = outcome(op, *integers(shapes))
    (step,) = ran.plan.steps
    assert select_winograd(step.node, ran.plan.graph.specs) is None
    np.testing.assert_array_equal(ran.outputs[0], op.reference(*integers(shapes))[0])
