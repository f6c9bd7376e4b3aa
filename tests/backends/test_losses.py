"""CPU kernels of softmax, of losses of values, and of class numbers as rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from convloom.backends.base import get_backend
from convloom.ir import NHWC, ROW_MAJOR
from convloom.ops import OneHot, PointwiseLoss, PointwiseLossGrad, Softmax, SoftmaxGrad
from convloom.ops.pointwise_loss import LOSSES
from tests.backends.cuda.trials import Trial, check
from tests.backends.harness import compare, normals
from tests.ops.test_pointwise_loss import operands

#: Shapes whose axes lie together in memory or apart, with tails.
SOFTMAX = (
    *(((n, k), 1) for n, k in ((1, 1), (3, 10), (33, 17), (2, 1000), (2, 1031))),
    *(((2, 5, 9, 7), dim) for dim in (1, 2, 3)),
    ((1, 17, 3, 1), 1),
    ((2, 3, 19, 7), 2),
    ((0, 3), 1),
)


def softmax_trials() -> Iterator[Trial]:
    """Softmax and its logarithm, forward and backward, on either order of memory."""
    for at, (shape, dim) in enumerate(SOFTMAX):
        x, dy = 4 * normals(shape, at), normals(shape, 50 + at)
        for log in (False, True):
            (y,) = Softmax(dim, log).reference(x)
            orders = (None, ROW_MAJOR) if len(shape) == 4 else (None,)
            for order in orders:
                yield Trial(Softmax(dim, log), (x,), layouts=(order, order))
                yield Trial(SoftmaxGrad(dim, log), (dy, y), layouts=(order, order, order))
    x, inf = normals((3, 5, 2, 2), 0), np.inf
    x[0, 1, 0, 0], x[1, :, 1, 1], x[2, 2, 0, 1] = np.nan, -inf, inf
    yield Trial(Softmax(1), (x,))
    yield Trial(Softmax(1, True), (x,), layouts=(ROW_MAJOR, ROW_MAJOR))
    yield Trial(Softmax(3), (x,), layouts=(ROW_MAJOR, NHWC))


def loss_trials() -> Iterator[Trial]:
    """Every loss, forward and backward: one element, tails, several blocks, no samples."""
    dloss = np.array(1.5, np.float32)
    for at, kind in enumerate(LOSSES):
        for shape in ((1, 1), (3, 17), (2, 3, 61, 53), (0, 4)):
            inputs = [v.astype(np.float32) for v in operands(kind, shape, at)]
            for reduction, a in (("mean", 1.0), ("batchmean", 3.0), ("sum", 50.0)):
                yield Trial(PointwiseLoss(kind, reduction, a), tuple(inputs))
                yield Trial(PointwiseLossGrad(kind, reduction, a), (*inputs, dloss))
    large = np.array([[-1e4, -90, -1e-6, 1e-6, 90, 1e4]], np.float32)
    for t in (np.zeros_like(large), np.ones_like(large)):
        yield Trial(PointwiseLoss("bce_logits", "sum"), (large, t))
        yield Trial(PointwiseLossGrad("bce_logits", "sum"), (large, t, dloss))
        yield Trial(PointwiseLoss("bce", "sum", 100.0), (t, 1 - t))
        yield Trial(PointwiseLossGrad("bce", "sum", 100.0), (t, 1 - t, dloss))
        yield Trial(PointwiseLoss("nll", "batchmean"), (np.where(t == 0, -np.inf, large), t))
    bad = large.copy()
    bad[0, 2] = np.nan
    yield Trial(PointwiseLoss("mse"), (bad, large))
    yield Trial(PointwiseLossGrad("mse"), (bad, large, dloss))
    # a target as the host gives it, beside an output in the order of the kernels
    x, t = normals((2, 3, 5, 4), 0), normals((2, 3, 5, 4), 1)
    yield Trial(PointwiseLoss("mse"), (x, t), layouts=(NHWC, ROW_MAJOR))
    yield Trial(PointwiseLossGrad("mse"), (x, t, dloss), layouts=(NHWC, ROW_MAJOR, None, NHWC))


def row_trials() -> Iterator[Trial]:
    """Class numbers as rows, labels out of range among them."""
    for classes in (1, 2, 10, 17, 100):
        labels = np.arange(-1, 34) % (classes + 2) - 1
        yield Trial(OneHot(classes), (labels.astype(np.int64),), True)
        yield Trial(OneHot(classes), (labels[:0].astype(np.int64),), True)


@pytest.mark.parametrize("trials", [softmax_trials, loss_trials, row_trials])
def test_kernels(trials) -> None:  # type: ignore[no-untyped-def]
    wanted = list(trials())
    assert check(wanted, get_backend("cpu"), "dense") == len(wanted)


def test_the_same_bits_on_any_number_of_threads() -> None:
    x, t = normals((40, 3000), 0), normals((40, 3000), 1)
    compare(Softmax(1), x)
    compare(PointwiseLoss("mse"), x, t)
