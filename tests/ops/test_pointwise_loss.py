from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import OneHot, PointwiseLoss, PointwiseLossGrad
from convloom.ops.pointwise_loss import LOSSES
from tests import zoo
from tests.ops.gradcheck import check, evaluate

Peer = Callable[..., torch.Tensor]


def elementwise(function: Callable[..., torch.Tensor]) -> Peer:
    """A sum with the reductions of PyTorch's own losses, and batchmean."""

    def peer(x: torch.Tensor, *t: torch.Tensor, reduction: str) -> torch.Tensor:
        values = function(x, *t)
        if reduction == "mean":
            return values.mean()
        return values.sum() / (1 if reduction == "sum" else len(x))

    return peer


#: {kind: (parameter, PyTorch's loss element by element)}.
PEERS: dict[str, tuple[float, Callable[..., torch.Tensor]]] = {
    "bce_logits": (
        1.0,
        lambda x, t: functional.binary_cross_entropy_with_logits(x, t, reduction="none"),
    ),
    "bce": (100.0, lambda x, t: functional.binary_cross_entropy(x, t, reduction="none")),
    "mse": (0.0, lambda x, t: functional.mse_loss(x, t, reduction="none")),
    "log_square": (0.0, lambda x, t: torch.log(1 + (t - x) ** 2)),
    "square": (0.0, torch.square),
    "nll": (0.0, lambda x, t: -t * x),
}


def operands(kind: str, shape: zoo.Shape, seed: int = 0) -> list[np.ndarray]:
    """x and its targets, 0, 1 and between; inputs of bce are probabilities."""
    rng = np.random.default_rng(seed)
    x, t = rng.standard_normal(shape), np.clip(rng.uniform(-1, 2, shape), 0, 1)
    if kind == "bce":
        x = 1 / (1 + np.exp(-x))
    return [x] if kind == "square" else [x, t]


def test_every_kind_is_tested() -> None:
    assert set(PEERS) == set(LOSSES)


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 3, 5, 4)], ids=str)
@pytest.mark.parametrize("kind", PEERS)
def test_loss_and_gradient(kind: str, shape: zoo.Shape, reduction: str) -> None:
    a, function = PEERS[kind]
    peer = elementwise(function)
    op = PointwiseLoss(kind, reduction, a)
    check(op, operands(kind, shape), lambda *v: peer(*v, reduction=reduction), wanted=[0])


def test_weight_of_positives() -> None:
    weight = torch.tensor(2.5, dtype=torch.float64)
    check(
        PointwiseLoss("bce_logits", "mean", 2.5),
        operands("bce_logits", (4, 9)),
        lambda x, t: functional.binary_cross_entropy_with_logits(x, t, pos_weight=weight),
        wanted=[0],
    )


@pytest.mark.parametrize(("a", "least"), [(100.0, 100.0), (50.0, 50.0)])
def test_logarithms_end(a: float, least: float) -> None:
    """PyTorch's ends at -100, cuda-convnet's at -50."""
    x, t = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])
    np.testing.assert_array_equal(evaluate(PointwiseLoss("bce", "sum", a), x, t)[0], 2 * least)
    np.testing.assert_array_equal(evaluate(PointwiseLoss("bce", "sum", a), x, x)[0], 0)


@pytest.mark.parametrize("value", [1e4, -1e4, np.nan])
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_large_logits_and_nan(value: float, target: float) -> None:
    x, t = np.array([[value]]), np.array([[target]])
    (loss,) = evaluate(PointwiseLoss("bce_logits"), x, t)
    peer = functional.binary_cross_entropy_with_logits(torch.from_numpy(x), torch.from_numpy(t))
    np.testing.assert_allclose(loss, peer.numpy())


def test_a_mean_over_nothing_is_nan() -> None:
    x = np.zeros((0, 3))
    assert np.isnan(evaluate(PointwiseLoss("mse"), x, x)[0])
    assert evaluate(PointwiseLoss("mse", "sum"), x, x)[0] == 0
    assert evaluate(PointwiseLossGrad("mse"), x, x, np.array(1.0))[0].shape == (0, 3)


def test_class_numbers_as_rows() -> None:
    (rows,) = evaluate(OneHot(3), np.array([2, 0, 3, -1]))
    nan = [np.nan] * 3
    np.testing.assert_array_equal(rows, [[0, 0, 1], [1, 0, 0], nan, nan])


def test_negative_log_likelihood_of_class_numbers() -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((5, 4)), np.array([0, 3, 1, 1, 2])
    x[0, 1] = -np.inf  # log of a probability of 0, elsewhere
    (t,) = OneHot(4).reference(labels)
    (loss,) = evaluate(PointwiseLoss("nll", "batchmean"), x, t.astype(x.dtype))
    wanted = functional.nll_loss(torch.from_numpy(x), torch.from_numpy(labels))
    np.testing.assert_allclose(loss, wanted.numpy())


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        (PointwiseLoss("huber"), ((2, 3), (2, 3)), "unknown loss 'huber'; known are bce_logits"),
        (PointwiseLoss("mse", "none"), ((2, 3), (2, 3)), "mean, sum, batchmean, it is 'none'"),
        (PointwiseLoss("mse"), ((2, 3), (2, 1)), r"shape \(2, 3\), it is float32 of shape \(2, 1"),
        (PointwiseLoss("mse"), ((2, 3),), "mse reads 2 tensors, it got 1"),
        (PointwiseLoss("bce_logits", a=-1.0), ((2, 3), (2, 3)), "at least 0, it is -1.0"),
        (OneHot(3), ((2, 3),), r"int64 of shape \(N,\)"),
    ],
)
def test_impossible(op: PointwiseLoss, shapes: tuple[zoo.Shape, ...], says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        op.infer(*map(TensorSpec, shapes))
