"""Group normalisation against PyTorch in float64 and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import GroupNorm, GroupNormGrad
from tests import zoo
from tests.ops.gradcheck import check, evaluate
from tests.zoo import Shape


def arrays(shape: Shape, affine: bool = True) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal(shape[1]) for _ in range(2)] if affine else []
    return [2 * rng.standard_normal(shape) - 1, *rows]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape, groups", zoo.GROUP_NORM, ids=str)
def test_output_and_gradients(shape: Shape, groups: int, affine: bool) -> None:
    op = GroupNorm(groups, affine)

    def peer(x: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.group_norm(x, groups, *rows)

    check(op, arrays(shape, affine), peer, tolerance=1e-10)


def test_channels_must_be_divisible() -> None:
    with pytest.raises(ShapeError, match="divisible by num_groups"):
        GroupNorm(2, affine=False).infer(TensorSpec((1, 3, 4, 4)))
    x, row = TensorSpec((2, 4, 3, 3)), TensorSpec((2, 2))
    with pytest.raises(ShapeError, match="statistics"):
        GroupNormGrad(4, affine=False).infer(x, x, row, row)


def test_nan_stays_in_its_group() -> None:
    x, weight, bias = arrays((2, 4, 3, 3))
    x[0, 0, 0, 0] = np.nan
    y, mean, invstd = evaluate(GroupNorm(2), x, weight, bias)
    dx, dweight, _ = evaluate(GroupNormGrad(2), x, x, mean, invstd, weight)
    for made in (y, dx):
        assert np.isnan(made[0, :2]).all()
        assert np.isfinite(made[0, 2:]).all()
        assert np.isfinite(made[1]).all()
    assert np.isnan(dweight[:2]).all()
    assert np.isfinite(dweight[2:]).all()
