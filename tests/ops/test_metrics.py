from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import Figures, TopKCorrect, TopKError
from tests import zoo
from tests.golden import load as golden
from tests.golden import names
from tests.ops.gradcheck import evaluate


def correct(logits: list[list[float]], target: list[int], k: int = 5) -> list[int]:
    return evaluate(TopKCorrect(k), np.array(logits), np.array(target))[0].tolist()


@pytest.mark.parametrize("n, classes", zoo.CLASSES)
def test_against_pytorch(n: int, classes: int) -> None:
    logits = zoo.distinct((n, classes))
    target = np.random.default_rng(n).integers(0, classes, n)
    top = torch.from_numpy(logits).topk(min(5, classes)).indices.numpy()
    hits = top == target[:, None]
    assert correct(logits.tolist(), target.tolist()) == [hits[:, 0].sum(), hits.sum()]


def test_among_equal_logits_the_earlier_ranks_higher() -> None:
    row = [1.0, 2.0, 2.0, 0.0]
    assert [correct([row], [label], k=2) for label in range(4)] == [[0, 0], [1, 1], [0, 1], [0, 0]]


def test_fewer_classes_than_k() -> None:
    assert correct([[0.0, 1.0, 2.0]], [0], k=5) == [0, 1]


def test_nan_is_never_right_and_ranks_above_every_number() -> None:
    nan = np.nan
    assert correct([[nan, nan, nan]] * 3, [0, 1, 2]) == [0, 0]
    assert correct([[nan, 1.0, 0.0]], [1], k=1) == [0, 0]
    assert correct([[0.0, 1.0, nan]], [1], k=2) == [0, 1]


def test_infinite_logits_rank_like_numbers() -> None:
    inf = np.inf
    assert correct([[-inf, inf, 0.0]] * 3, [0, 1, 2], k=2) == [1, 2]


def test_no_samples() -> None:
    assert evaluate(TopKCorrect(), np.empty((0, 3)), np.empty(0, np.int64))[0].tolist() == [0, 0]


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(
        ShapeError, match=r"logits \(N, classes\) and labels \(N,\), it got \(4, 10\)"
    ):
        TopKCorrect().infer(TensorSpec((4, 10)), TensorSpec((5,), "int64"))
    with pytest.raises(ShapeError, match="k must be at least 1"):
        TopKCorrect(0).infer(TensorSpec((4, 10)), TensorSpec((4,), "int64"))


def errors(scores: list[list[float]], target: list[int], k: int) -> list[float]:
    return evaluate(TopKError(k), np.array(scores), np.array(target, np.int64))[0].tolist()


@pytest.mark.parametrize("n, classes", zoo.CLASSES)
def test_errors_are_what_is_not_right_where_scores_differ(n: int, classes: int) -> None:
    scores = zoo.distinct((n, classes))
    target = np.random.default_rng(n).integers(0, classes, n)
    rights = evaluate(TopKCorrect(3), scores, target)[0]
    wrongs = evaluate(TopKError(3), scores, target)[0]
    np.testing.assert_allclose(wrongs, 1 - rights / n, atol=1e-12)


def test_equal_scores_share_the_places() -> None:
    row = [1.0, 2.0, 2.0, 2.0, 3.0]
    assert errors([row], [4], 2) == [0, 0]
    assert errors([row], [1], 2) == [1, pytest.approx(2 / 3)]
    assert errors([row], [1], 3) == [1, pytest.approx(1 / 3)]
    assert errors([row], [1], 4) == [1, 0]
    assert errors([row], [0], 4) == [1, 1]
    assert errors([row], [0], 9) == [1, 0]
    assert errors([[5.0, 5.0]], [0], 1) == [0.5, 0.5]


def test_errors_of_scores_that_are_not_numbers() -> None:
    nan, inf = np.nan, np.inf
    assert errors([[nan, nan]], [0], 2) == [1, 1]
    assert errors([[nan, 1.0]], [1], 2) == [1, 0]
    assert errors([[inf, inf, -inf]], [1], 2) == [0.5, 0]
    assert np.isnan(evaluate(TopKError(2), np.empty((0, 3)), np.empty(0, np.int64))[0]).all()


@pytest.mark.parametrize("case", names("cost.logreg"))
def test_golden_ties(case: str) -> None:
    """Sums over the cases there, cases in columns."""
    found = golden(case)
    p, labels = found.arrays["p"].T, found.arrays["labels"].astype(np.int64)
    wrong = evaluate(TopKError(found.params["topk"]), np.ascontiguousarray(p), labels)[0]
    np.testing.assert_allclose(len(p) * wrong, found.arrays["cost"][1:], rtol=1e-12)


def test_figures_in_a_row() -> None:
    (row,) = evaluate(Figures(), np.array(1.5), np.array([[2.0, 3.0], [4.0, 5.0]]))
    assert row.tolist() == [1.5, 2, 3, 4, 5]
    with pytest.raises(ShapeError, match="of one dtype, at least one; these are float64, float32"):
        Figures().infer(TensorSpec((), "float64"), TensorSpec((2,)))
    with pytest.raises(ShapeError, match="these are none"):
        Figures().infer()
