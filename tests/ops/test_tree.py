"""Sums along a tree's paths against the product with the matrix of its paths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import LeafSum, PathSum
from tests.ops.gradcheck import check, evaluate
from tests.trees import TREES, Tables


def peer(tree: Tables):  # type: ignore[no-untyped-def]
    return lambda z, *_: z @ torch.from_numpy(tree.paths.T)


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("n", (1, 4))
def test_forward_and_gradient(tree: Tables, n: int) -> None:
    z = np.random.default_rng(n).standard_normal((n, len(tree.parents)))
    check(PathSum("", tree.terms), [z, *tree], peer(tree))


def test_no_samples() -> None:
    tree = TREES[2]
    (y,) = evaluate(PathSum("", 1), np.ones((0, len(tree.parents))), *tree)
    assert y.shape == (0, len(tree.order))
    (dz,) = evaluate(LeafSum("", 1), y, *tree[1:])
    assert dz.shape == (0, len(tree.parents))


def test_infinity_stays_on_its_paths() -> None:
    tree = TREES[3]
    z = np.ones((2, len(tree.parents)))
    inner = len(tree.order)
    z[1, inner] = np.inf
    (y,) = evaluate(PathSum("", 1), z, *tree)
    np.testing.assert_array_equal(np.isinf(y[1]), tree.paths[:, inner] > 0)
    assert np.isfinite(y[0]).all()


def test_flops_are_additions_along_the_paths() -> None:
    tree = TREES[3]
    specs = [TensorSpec((5, len(tree.parents)))]
    assert PathSum("", tree.terms).flops(specs, ()) == 5 * tree.paths.sum()


@pytest.mark.parametrize(
    ("shapes", "dtype", "says"),
    [
        (((2, 4), (3,), (3,), (3,), (2,)), "int64", r"of 3 nodes takes \(N, 3\), not \(2, 4\)"),
        (((2, 3), (3,), (4,), (3,), (2,)), "int64", "cannot be of 3, 4, 3 nodes and 2 leaves"),
        (((2, 3), (3,), (3,), (3,), (4,)), "int64", "of 3, 3, 3 nodes and 4 leaves"),
        (((2, 3), (3,), (3,), (3,), (0,)), "int64", "of 3, 3, 3 nodes and 0 leaves"),
        (((2, 3), (3,), (3,), (3, 1), (2,)), "int64", "int64 and of one axis"),
        (((2, 3), (3,), (3,), (3,), (2,)), "float32", "int64 and of one axis"),
    ],
)
def test_impossible_shapes(shapes: tuple[tuple[int, ...], ...], dtype: str, says: str) -> None:
    z, *tables = shapes
    with pytest.raises(ShapeError, match=says):
        PathSum("", 1).infer(TensorSpec(z), *(TensorSpec(shape, dtype) for shape in tables))


def test_a_gradient_of_another_width_is_refused() -> None:
    tables = [TensorSpec(shape, "int64") for shape in ((3,), (3,), (2,))]
    with pytest.raises(ShapeError, match=r"of 2 leaves takes \(N, 2\), not \(4, 3\)"):
        LeafSum("", 1).infer(TensorSpec((4, 3)), *tables)
