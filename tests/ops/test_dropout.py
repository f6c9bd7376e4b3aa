from __future__ import annotations

import numpy as np
import pytest

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import COUNTER_SPEC, Activation, ChannelDropout, Dropout, DropoutGrad
from convloom.ops.control import counter_vector
from convloom.random import bits, stream_id
from tests import zoo
from tests.ops.gradcheck import check_differences, evaluate, gradients

COUNTER = counter_vector(seed=3, step=7)


@pytest.mark.parametrize("shape", zoo.ELEMENTWISE, ids=str)
def test_forward_and_gradient(shape: zoo.Shape) -> None:
    op = Dropout(0.3, stream=5)
    x = zoo.distinct(shape)
    y, mask = evaluate(op, x, COUNTER)
    np.testing.assert_array_equal(y, np.where(mask == 1, x * (1 / 0.7), 0))
    dy = np.random.default_rng(1).standard_normal(shape)
    dx = gradients(op, [x, COUNTER], dy)[0]
    np.testing.assert_array_equal(dx, np.where(mask == 1, dy * (1 / 0.7), 0))
    check_differences(op, [x, COUNTER], dy, 0, dx)


def mask_of(op: Dropout, counter: np.ndarray = COUNTER, n: int = 4096) -> np.ndarray:
    return evaluate(op, np.ones(n), counter)[1]


def test_the_mask_compares_words_of_the_stream() -> None:
    words = bits(3, 5, 7, 0, 4096)
    np.testing.assert_array_equal(mask_of(Dropout(0.25, 5)), words >= 2**30)


def test_a_word_equal_to_the_threshold_is_kept() -> None:
    word = int(bits(3, 5, 7, 10, 1)[0])
    assert mask_of(Dropout(word / 2**32, 5))[10] == 1
    assert mask_of(Dropout((word + 1) / 2**32, 5))[10] == 0


def test_masks_depend_on_seed_step_and_stream_alone() -> None:
    first = mask_of(Dropout(0.5, 5))
    np.testing.assert_array_equal(first, mask_of(Dropout(0.5, 5)))
    others = [
        mask_of(Dropout(0.5, 6)),
        mask_of(Dropout(0.5, 5), counter_vector(3, 8)),
        mask_of(Dropout(0.5, 5), counter_vector(4, 7)),
        mask_of(Dropout(0.5, 5), counter_vector(3 + 2**40, 7)),
        mask_of(Dropout(0.5, stream_id("features.2"))),
    ]
    for other in others:
        assert 0.45 < (first == other).mean() < 0.55


def test_a_larger_batch_keeps_the_masks_of_its_first_images() -> None:
    small, large = (evaluate(Dropout(0.5), np.ones((n, 3, 5)), COUNTER)[1] for n in (2, 4))
    np.testing.assert_array_equal(small, large[:2])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped(p: float) -> None:
    dropped = 1 - mask_of(Dropout(p), n=100_000).mean()
    assert abs(dropped - p) < 4 * (p * (1 - p) / 100_000) ** 0.5


def test_the_ends_of_p() -> None:
    x = zoo.distinct((4, 5))
    np.testing.assert_array_equal(evaluate(Dropout(0.0), x, COUNTER)[0], x)
    y, mask = evaluate(Dropout(1.0), x, COUNTER)
    assert not y.any()
    assert not mask.any()


def test_values_that_are_not_finite() -> None:
    """A dropped NaN or Inf is NaN, as a product with 0."""
    y, mask = evaluate(Dropout(0.5), np.full(64, np.inf), COUNTER)
    np.testing.assert_array_equal(y, np.where(mask == 1, np.inf, np.nan))


def test_prediction_drops_nothing() -> None:
    assert Dropout(0.5).inference() is None


def test_flops_count_the_product_alone() -> None:
    x, mask = TensorSpec((4, 5)), TensorSpec((4, 5), "uint8")
    assert Dropout(0.5).flops((x, COUNTER_SPEC), (x, mask)) == 20
    assert DropoutGrad(0.5).flops((x, mask), (x,)) == 20


def test_no_samples() -> None:
    y, mask = evaluate(Dropout(0.5), np.empty((0, 3)), COUNTER)
    assert y.shape == mask.shape == (0, 3)


@pytest.mark.parametrize("op", [Dropout(-0.1), Dropout(1.1), Dropout(float("nan"))], ids=str)
def test_p_out_of_range(op: Dropout) -> None:
    with pytest.raises(ShapeError, match=r"p must be in \[0, 1\]"):
        op.infer(TensorSpec((2,)), COUNTER_SPEC)


def test_other_inputs_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="stream must be in"):
        Dropout(0.5, 2**32).infer(TensorSpec((2,)), COUNTER_SPEC)
    with pytest.raises(ShapeError, match="counter must be 2 uint64, it is 2 int64"):
        Dropout(0.5).infer(TensorSpec((2,)), TensorSpec((2,), "int64"))


@pytest.mark.parametrize("shape", [(1, 1, 3, 2), (2, 17, 5, 4), (33, 3, 1, 1), (2, 5, 7)], ids=str)
def test_channels_are_dropped_whole(shape: zoo.Shape) -> None:
    op = ChannelDropout(0.4, stream=5)
    x = zoo.distinct(shape)
    y, mask = evaluate(op, x, COUNTER)
    np.testing.assert_array_equal(
        mask, Dropout(0.4, 5).reference(x.reshape(*shape[:2], -1)[..., 0], COUNTER)[1]
    )
    kept = mask.reshape(*mask.shape, *(1,) * (len(shape) - 2)) == 1
    np.testing.assert_array_equal(y, np.where(kept, x * (1 / 0.6), 0))
    dy = np.random.default_rng(1).standard_normal(shape)
    dx = gradients(op, [x, COUNTER], dy)[0]
    np.testing.assert_array_equal(dx, np.where(kept, dy * (1 / 0.6), 0))
    check_differences(op, [x, COUNTER], dy, 0, dx)


@pytest.mark.parametrize("kind", [Dropout, ChannelDropout])
def test_without_rescaling_prediction_multiplies(kind: type[Dropout]) -> None:
    """cuda-convnet's hs layer: masks of 0 and 1 in training, the share that is kept in tests."""
    op, x = kind(0.3, 5, rescale=False), zoo.distinct((4, 6, 2, 2))
    y, mask = evaluate(op, x, COUNTER)
    kept = np.broadcast_to(mask.reshape(*mask.shape, *(1,) * (4 - mask.ndim)), x.shape)
    np.testing.assert_array_equal(y, x * kept)
    dy = np.random.default_rng(1).standard_normal(x.shape)
    np.testing.assert_array_equal(gradients(op, [x, COUNTER], dy)[0], dy * kept)
    assert op.inference() == Activation("linear", 0.7)
    assert kind(0.3, 5).inference() is None


def test_channels_need_images() -> None:
    with pytest.raises(ShapeError, match=r"drops channels of images .* \(2, 3\); use Dropout"):
        ChannelDropout().infer(TensorSpec((2, 3)), COUNTER_SPEC)
