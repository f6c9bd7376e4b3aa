from __future__ import annotations

import numpy as np
import pytest

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import COUNTER_SPEC, NoisyReLU
from convloom.ops.control import counter_vector
from convloom.random import normal
from tests import zoo
from tests.ops.gradcheck import evaluate, gradients

COUNTER = counter_vector(seed=3, step=7)


@pytest.mark.parametrize("shape", zoo.ELEMENTWISE, ids=str)
def test_forward_and_gradient(shape: zoo.Shape) -> None:
    """Each number scaled by what is passed; dy goes where y is above 0."""
    op, x = NoisyReLU(5), zoo.distinct(shape)
    (y,) = evaluate(op, x, COUNTER)
    passed = np.maximum(x, 0)
    wanted = np.maximum(passed + passed * normal(3, 5, shape, step=7), 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-15)
    dy = np.random.default_rng(1).standard_normal(shape)
    np.testing.assert_array_equal(gradients(op, [x, COUNTER], dy)[0], np.where(y > 0, dy, 0))


def test_the_gradient_is_that_with_the_noise_held() -> None:
    op, h = NoisyReLU(5), 1e-6
    x = np.random.default_rng(0).standard_normal((6, 50))
    (y,) = evaluate(op, x, COUNTER)
    up, down = (op.with_noise_of(x, x + d, COUNTER) for d in (h, -h))
    np.testing.assert_allclose(op.with_noise_of(x, x, COUNTER), y, rtol=1e-12, atol=1e-15)
    clear = (np.abs(x) > 1e-3) & ((np.abs(y) > 1e-3) | (x < 0))
    clear |= (x > 0) & (x + x * normal(3, 5, x.shape, step=7) < -1e-3)
    assert clear.mean() > 0.9
    np.testing.assert_allclose(((up - down) / (2 * h))[clear], (y > 0)[clear], atol=1e-6)


def test_noise_is_as_large_as_what_is_passed() -> None:
    """relu(1 + n) has mean 1.0833 and mean square 1.9246, by the normal law."""
    (y,) = evaluate(NoisyReLU(1), np.full(100_000, 10.0), COUNTER)
    assert y.mean() == pytest.approx(10.833, rel=0.01)
    assert (y**2).mean() == pytest.approx(192.46, rel=0.02)


def test_noise_depends_on_seed_step_and_stream_alone() -> None:
    x = np.ones(4096)
    first = evaluate(NoisyReLU(5), x, COUNTER)[0]
    np.testing.assert_array_equal(first, evaluate(NoisyReLU(5), x, COUNTER)[0])
    others = [
        evaluate(NoisyReLU(6), x, COUNTER)[0],
        evaluate(NoisyReLU(5), x, counter_vector(3, 8))[0],
        evaluate(NoisyReLU(5), x, counter_vector(4, 7))[0],
        evaluate(NoisyReLU(5).inference(), x)[0],
    ]
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_predictions_have_noise_that_stays() -> None:
    op = NoisyReLU(5).inference()
    assert (op, op.inference()) == (NoisyReLU(5, fixed=True), op)
    x = zoo.distinct((3, 4))
    fixed = evaluate(NoisyReLU(5), x, counter_vector(0, 0))[0]
    np.testing.assert_array_equal(evaluate(op, x)[0], fixed)


def test_values_that_are_not_finite() -> None:
    x = np.array([np.nan, -np.inf, -1.0, 0.0] + 60 * [np.inf])
    (y,) = evaluate(NoisyReLU(5), x, COUNTER)
    np.testing.assert_array_equal(y[:4], [np.nan, 0, 0, 0])
    gains = 1 + normal(3, 5, x.shape, step=7)
    np.testing.assert_array_equal(y[4:], np.where(gains[4:] > 0, np.inf, 0))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ShapeError, match="a noisy rectifier's stream must be in"):
        NoisyReLU(-1).infer(TensorSpec((2,)), COUNTER_SPEC)
    with pytest.raises(ShapeError, match="the counter must be"):
        NoisyReLU(1).infer(TensorSpec((2,)), TensorSpec((2,)))
