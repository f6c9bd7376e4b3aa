"""Against the rule written out, and against the 2012 code's own habits: a filter at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import FilterLimit, VelocitySGD
from tests.ops.gradcheck import evaluate

SHAPES = ((4, 3, 2, 2), (5,), (3, 7))


def normals(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in SHAPES]


def test_the_rate_is_inside_the_velocity() -> None:
    """A rate that falls to 0 leaves what earlier rates built up."""
    eps, momentum, decay = (0.1, 0.0, 0.3), (0.9, 0.8, 0.0), (0.0, 0.5, 0.01)
    w, v = normals(0), [np.zeros(shape) for shape in SHAPES]
    expected_w, expected_v = [x.copy() for x in w], [x.copy() for x in v]
    for step, scale in enumerate((1.0, 0.5, 0.0)):
        g = normals(step + 1)
        hyper = np.array([*(scale * e for e in eps), *momentum, *decay])
        made = evaluate(VelocitySGD(((),) * 3), hyper, *w, *g, *v)
        w, v = list(made[:3]), list(made[3:])
        for i in range(3):
            rate = scale * eps[i]
            expected_v[i] = (
                momentum[i] * expected_v[i] - rate * g[i] - rate * decay[i] * expected_w[i]
            )
            expected_w[i] = expected_w[i] + expected_v[i]
        for ours, theirs in zip((*w, *v), (*expected_w, *expected_v), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
    assert np.abs(v[0]).max() > 0


@pytest.mark.parametrize("centred", (False, True))
def test_filters_are_brought_between_the_bounds(centred: bool) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((6, 3, 2, 2)) * np.array([1, 10, 0.01, 1, 100, 0]).reshape(-1, 1, 1, 1)
    limit = FilterLimit(centred, 0.05, 0.3)
    zero = np.zeros_like(w)
    new, _ = evaluate(VelocitySGD(((limit,),)), np.zeros(3), w, zero, zero)
    for before, after in zip(w, new, strict=True):
        size = np.linalg.norm(before - (before.mean() if centred else 0)) / before.size
        factor = 1.0 if size == 0 else min(max(size, 0.05), 0.3) / size
        np.testing.assert_allclose(after, before * factor, rtol=1e-12)


def test_of_several_limits_each_takes_what_the_one_before_left() -> None:
    w = np.random.default_rng(0).standard_normal((5, 3, 2, 2)) + 3
    zero, rates = np.zeros_like(w), np.zeros(3)
    norm, ball = FilterLimit(True, 0.1, 0.2), FilterLimit(False, 0.0, 0.05)
    found = w
    for limit in (norm, ball):
        found, _ = evaluate(VelocitySGD(((limit,),)), rates, found, zero, zero)
    new, _ = evaluate(VelocitySGD(((norm, ball),)), rates, w, zero, zero)
    np.testing.assert_array_equal(new, found)
    other, _ = evaluate(VelocitySGD(((ball, norm),)), rates, w, zero, zero)
    assert np.abs(new - other).max() > 1e-3
    lengths = np.linalg.norm(new.reshape(5, -1), axis=1)
    np.testing.assert_allclose(lengths, 0.05 * 12, rtol=1e-12)


def test_rows_divide_the_rate_and_the_decay_once_more() -> None:
    w, g, v = (np.stack([x, x, x]) for x in np.random.default_rng(0).standard_normal((3, 7)))
    hyper, divisors = np.array([0.1, 0.9, 0.3]), np.array([1, 2, 40])
    made = evaluate(VelocitySGD(((),), (0,)), hyper, w, g, v, divisors)
    for row, divisor in enumerate(divisors):
        alone = np.array([0.1 / divisor, 0.9, 0.3 / divisor])
        expected = evaluate(VelocitySGD(((),)), alone, w[0], g[0], v[0])
        for ours, theirs in zip(made, expected, strict=True):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-12)


def test_gradients_are_divided_by_their_size_of_late() -> None:
    """superEps, step by step as it is written; the file's momentum is that of the means."""
    eps, momentum, floor = 0.1, 0.6, 0.3
    rng = np.random.default_rng(0)
    w, v, mean, square = rng.standard_normal((5, 7)), *np.zeros((3, 5, 7))
    op, rates = VelocitySGD(((),), (), ((0, floor),)), np.array([eps, momentum, 0.5])
    ours = w, v, mean, square
    for _ in range(4):
        g = rng.standard_normal((5, 7))
        mean = momentum * mean + (1 - momentum) * g
        square = momentum * square + (1 - momentum) * g**2
        v = 0.9 * v - eps * g / np.sqrt(square + mean + floor)
        w = w + v
        ours = evaluate(op, rates, ours[0], g, *ours[1:])
        for got, wanted in zip(ours, (w, v, mean, square), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15)


def test_a_root_of_a_number_below_0_is_nan_and_a_floor_above_a_quarter_is_safe() -> None:
    g, zero = np.linspace(-2, 2, 401), np.zeros(401)
    rates = np.array([0.1, 0.0, 0.0])
    for floor, lost in ((0.1, True), (0.2500001, False)):
        new_w, *_ = evaluate(VelocitySGD(((),), (), ((0, floor),)), rates, *[zero, g], *[zero] * 3)
        assert np.isnan(new_w).any() == lost


@pytest.mark.parametrize("adaptive", ((), ((0, 0.5),)))
def test_an_update_of_several_minibatches_is_one_of_their_mean(adaptive: Any) -> None:
    """Nothing moves before the last of them, though the limit has something to do."""
    rng, ball = np.random.default_rng(0), FilterLimit(False, 0.0, 0.01)
    w, v, mean, square, total, *gradients = rng.random((8, 4, 6))
    states = (mean, square) if adaptive else ()
    several, one = (VelocitySGD(((ball,),), (), adaptive, every) for every in (3, 1))
    rates, now = [0.1, 0.9, 0.01], (w, v, *states, total)
    for i, g in enumerate(gradients):
        hyper = np.array([*rates, i > 0, i == 2], np.float64)
        before, now = now, evaluate(several, hyper, now[0], g, *now[1:])
        np.testing.assert_allclose(now[-1], sum(gradients[: i + 1]), rtol=1e-14)
        if i < 2:
            for old, new in zip(before[:-1], now[:-1], strict=True):
                np.testing.assert_array_equal(new, old)
    wanted = evaluate(one, np.array(rates), w, sum(gradients) / 3, v, *states)
    for got, expected in zip(now[:-1], wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_sum_that_was_not_finite_ends_with_its_update() -> None:
    zero, lost = np.zeros(3), np.array([np.nan, np.inf, 1.0])
    op, hyper = VelocitySGD(((),), every=2), np.array([0.1, 0.9, 0.0, 0.0, 1.0])
    for made in evaluate(op, hyper, zero, zero, zero, lost):
        np.testing.assert_array_equal(made, zero)


def test_the_states_of_several_parameters_keep_their_places() -> None:
    """Parameters 0 and 2 are divided by their sizes, 2 has divisors and a limit too."""
    rng, ball = np.random.default_rng(0), FilterLimit(False, 0.0, 0.02)
    w, g, v = (rng.standard_normal((3, 4, 6)) for _ in range(3))
    means, squares, divisors = *rng.random((2, 2, 4, 6)), np.array([1, 2, 3, 9])
    rates = np.array([0.1, 0.2, 0.3, 0.9, 0.8, 0.7, 0.5, 0.4, 0.3])
    op = VelocitySGD(((), (), (ball,)), (2,), ((0, 0.4), (2, 0.5)))
    made = evaluate(op, rates, *w, *g, *v, *means, *squares, divisors)
    assert len(made) == op.arity_out == 10
    for i, own in enumerate((0, None, 1)):
        states = [] if own is None else [means[own], squares[own]]
        one = VelocitySGD(
            op.limits[i : i + 1],
            (0,) if i == 2 else (),
            () if own is None else ((0, op.adaptive[own][1]),),
        )
        more = [divisors] if i == 2 else []
        alone = evaluate(one, rates[i::3], w[i], g[i], v[i], *states, *more)
        places = [i, 3 + i] + ([] if own is None else [6 + own, 8 + own])
        for place, wanted in zip(places, alone, strict=True):
            np.testing.assert_array_equal(made[place], wanted)


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    op, spec, rates = VelocitySGD(((),)), TensorSpec((2, 3)), TensorSpec((3,), "float64")
    with pytest.raises(ShapeError, match="take 4 tensors, got 3"):
        op.infer(rates, spec, spec)
    with pytest.raises(ShapeError, match="must have 3 rates"):
        op.infer(TensorSpec((2,), "float64"), spec, spec, spec)
    with pytest.raises(ShapeError, match="have shapes"):
        op.infer(rates, spec, TensorSpec((3, 2)), spec)
    op = VelocitySGD(((),), (), ((0, 1.0),))
    with pytest.raises(ShapeError, match="take 6 tensors, got 4"):
        op.infer(rates, spec, spec, spec)
    with pytest.raises(ShapeError, match="have shapes"):
        op.infer(rates, spec, spec, spec, spec, TensorSpec((3, 2)))
    op = VelocitySGD(((),), every=2)
    with pytest.raises(ShapeError, match="take 5 tensors, got 4"):
        op.infer(rates, spec, spec, spec)
    with pytest.raises(ShapeError, match="must have 5 rates"):
        op.infer(rates, spec, spec, spec, spec)
    op = VelocitySGD(((),), (0,))
    with pytest.raises(ShapeError, match="take 5 tensors, got 4"):
        op.infer(rates, spec, spec, spec)
    for wrong in (TensorSpec((3,), "int64"), TensorSpec((2,))):
        with pytest.raises(ShapeError, match=r"of parameter 0 must be \(2,\) int64"):
            op.infer(rates, spec, spec, spec, wrong)
