"""CPU kernels of normalisation against their references."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.ir import ROW_MAJOR
from convloom.ops import (
    BatchNorm,
    BatchNormGrad,
    ContrastNorm2d,
    GroupNorm,
    GroupNormGrad,
    LocalResponseNorm,
    Op,
    ResponseNorm2d,
)
from tests import golden
from tests.backends import norms
from tests.backends.harness import compare, normals, run_op
from tests.backends.norms import Trial
from tests.ops.test_response_norm import golden_op

TRIALS = norms.every()


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_zoo(trial: Trial) -> None:
    compare(trial.op, *trial.inputs)


def test_several_chunks() -> None:
    """Images of more rows than a chunk takes, and channels beyond a block of vectors."""
    for shape in ((3, 83, 23, 19), (2, 130, 17, 11)):
        for trial in (*norms.batch_norms(shape, affine=True), *norms.group_norms(shape, 1, True)):
            compare(trial.op, *trial.inputs)


def test_row_major_inputs_are_reordered() -> None:
    x = normals((3, 5, 7, 9), 0)
    row = normals((5,), 1)
    for op, inputs in (
        (BatchNorm(affine=False, track=False), (x,)),
        (BatchNormGrad(affine=False), (x, x + 1, row, row)),
        (GroupNorm(5, affine=False), (x,)),
        (LocalResponseNorm(3), (x,)),
        (ResponseNorm2d(3), (x,)),
    ):
        assert isinstance(op, Op)
        layouts = tuple(ROW_MAJOR if v.ndim == 4 else None for v in inputs)
        compare(op, *inputs, layouts=layouts)


def test_small_deviations_from_a_large_mean_survive() -> None:
    """Values near 1000 that differ by thousandths: sums of squares would lose them."""
    x = np.float32(1000) + np.float32(2.0**-10) * np.random.default_rng(0).integers(
        0, 64, (4, 5, 20, 20)
    ).astype(np.float32)
    op = BatchNorm(eps=1e-12, affine=False, track=False)
    y, mean, _ = run_op(op, x, require="dense")
    wanted, wanted_mean, _ = op.reference(x.astype(np.float64))
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-7)
    np.testing.assert_allclose(y, wanted, atol=5e-3)  # the mean itself is rounded to 2^-14
    assert abs(float(y.std()) - 1) < 1e-3


def test_an_empty_batch() -> None:
    running = (normals((3,), 0), normals((3,), 1) ** 2, np.array(5))
    x = np.zeros((0, 3, 4, 4), np.float32)
    y, _, _, *kept = run_op(BatchNorm(affine=False), x, *running, require="dense")
    assert y.shape == x.shape
    for old, new in zip(running, kept, strict=True):
        np.testing.assert_array_equal(old, new)
    statistics = np.zeros((0, 3), np.float32)
    for op, rows in ((BatchNormGrad(), normals((2, 3), 0)), (GroupNormGrad(3), [statistics] * 2)):
        _, dweight, dbias = run_op(op, x, x, *rows, running[0], require="dense")
        assert not dweight.any()
        assert not dbias.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_channel_group_or_window(value: float) -> None:
    x = normals((2, 20, 6, 7), 0)
    x[1, 3, 2, 2] = value
    weights = normals((2, 20), 1)
    y = run_op(BatchNorm(track=False), x, *weights, require="dense")[0]
    assert np.isnan(y[:, 3]).all()
    assert np.isfinite(np.delete(y, 3, axis=1)).all()
    y = run_op(GroupNorm(4), x, *weights, require="dense")[0]
    assert np.isnan(y[1, :5]).all()
    assert np.isfinite(y[1, 5:]).all()
    assert np.isfinite(y[0]).all()
    for op in (LocalResponseNorm(5), ResponseNorm2d(3), ContrastNorm2d(3)):
        (y,) = run_op(op, x, require="dense")
        with np.errstate(all="ignore"):
            (wanted,) = op.reference(x)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [0.0, -1.0])
def test_denominators_of_zero_and_below(k: float) -> None:
    x = np.zeros((1, 3, 2, 2), np.float32)
    x[0, 0, 0, 0] = 2
    op = LocalResponseNorm(1, 1.0, 0.5, k)
    (y,) = run_op(op, x, require="dense")
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, op.reference(x)[0], rtol=1e-6)


@pytest.mark.parametrize("name", golden.names("rnorm", "cnorm", "cmrnorm"))
def test_golden_vectors_of_cuda_convnet(name: str) -> None:
    case = golden.load(name)
    op = golden_op(case.layer, case.params)
    (y,) = run_op(op, case.images("x").astype(np.float32), require="dense")
    np.testing.assert_allclose(y, case.images("y"), rtol=0, atol=1e-4)
