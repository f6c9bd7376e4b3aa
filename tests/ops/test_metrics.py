from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import TopKCorrect
from tests import zoo
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
