"""CUDA kernels of normalisation against their references, on each rung that has some."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from convloom.backends.base import Backend, get_backend
from convloom.ir import ROW_MAJOR
from convloom.ops import BatchNorm, BatchNormGrad, ContrastNorm2d, GroupNorm, LocalResponseNorm
from tests.backends import norms
from tests.backends.cuda.trials import Trial, check
from tests.backends.harness import normals, outcome

RUNGS = ("naive", "tiled")


@pytest.fixture(params=["cuda-sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    if shutil.which("g++"):
        monkeypatch.setenv("CONVLOOM_SIM", os.environ.get("CONVLOOM_SIM") or "asan")
    return get_backend(request.param)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("part", range(3))
def test_zoo(backend: Backend, rung: str, part: int) -> None:
    mine = norms.every()[part::3]
    served = check([Trial(trial.op, trial.inputs) for trial in mine], backend, rung)
    plain = [trial for trial in mine if not trial.op.name.startswith("Fused")]
    assert served == len(plain) if rung == "naive" else served > len(mine) // 2


@pytest.mark.parametrize("rung", RUNGS)
def test_several_chunks(backend: Backend, rung: str) -> None:
    """Rows beyond a chunk and beyond what a thread holds at once, channels beyond a block."""
    trials = []
    for shape in ((2, 68, 33, 19), (3, 132, 7, 9), (2, 7, 40, 17)):
        trials += [*norms.batch_norms(shape, affine=True), *norms.group_norms(shape, 1, True)]
    assert check([Trial(trial.op, trial.inputs) for trial in trials], backend, rung)


@pytest.mark.parametrize("rung", RUNGS)
def test_row_major_inputs_and_values_that_are_not_finite(backend: Backend, rung: str) -> None:
    x, row = normals((3, 8, 7, 9), 0), normals((8,), 1)
    bad = x.copy()
    bad[1, 3, 2, 2], bad[2, 5, 0, 0] = np.nan, np.nan
    trials = [
        Trial(BatchNorm(affine=False, track=False), (x,), layouts=(ROW_MAJOR,)),
        Trial(BatchNormGrad(affine=False), (x, x + 1, row, row), layouts=(ROW_MAJOR, ROW_MAJOR)),
        Trial(GroupNorm(2, affine=False), (x,), layouts=(ROW_MAJOR,)),
        Trial(LocalResponseNorm(3), (x,), layouts=(ROW_MAJOR,)),
        Trial(BatchNorm(affine=False, track=False), (bad,)),
        Trial(GroupNorm(4, affine=False), (bad,)),
        Trial(LocalResponseNorm(3), (bad,)),
        Trial(ContrastNorm2d(3), (bad,)),
    ]
    assert check(trials, backend, rung)


@pytest.mark.parametrize("rung", RUNGS)
def test_small_deviations_from_a_large_mean_survive(backend: Backend, rung: str) -> None:
    draw = np.random.default_rng(0)
    x = np.float32(1000) + np.float32(2.0**-10) * draw.integers(0, 64, (2, 8, 30, 20)).astype("f4")
    op = BatchNorm(eps=1e-12, affine=False, track=False)
    y, mean, _ = outcome(op, x, kernels=rung, backend=backend, require=rung).outputs
    wanted, wanted_mean, _ = op.reference(x.astype(np.float64))
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-7)
    np.testing.assert_allclose(y, wanted, atol=5e-3)  # the mean itself is rounded to 2^-14


def test_an_empty_batch(backend: Backend) -> None:
    running = (normals((3,), 0), normals((3,), 1) ** 2, np.array(5))
    x = np.zeros((0, 3, 4, 4), np.float32)
    y, _, _, *kept = outcome(BatchNorm(affine=False), x, *running, backend=backend).outputs
    assert y.shape == x.shape
    np.testing.assert_array_equal(kept[0], running[0])
    _, dweight, dbias = outcome(BatchNormGrad(), x, x, *[running[0]] * 3, backend=backend).outputs
    assert not dweight.any()
    assert not dbias.any()
