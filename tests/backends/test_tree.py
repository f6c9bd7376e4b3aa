"""CPU kernels of sums along a tree's paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from convloom.backends.base import get_backend
from convloom.ops import LeafSum, PathSum
from tests.backends.cuda.trials import Trial, check
from tests.backends.harness import compare, integers, normals
from tests.trees import TREES, Tables, random_tree, tables

Make = Callable[[tuple[int, ...], int], np.ndarray]


def tree_trials() -> Iterator[Trial]:
    """Both sums on every tree: exact, with NaN and infinities, and on tables that are broken."""
    for tree in TREES:
        for n in (0, 1, 33):
            yield from _pair(tree, n, integers, exact=True)
    yield from _pair(random_tree(3000, 700, 2), 5, normals, exact=False)
    yield from _pair(TREES[4], 3, _with_specials, exact=True)
    for tree in _broken():
        yield from _pair(tree, 2, integers, exact=True)


def _pair(tree: Tables, n: int, make: Make, exact: bool) -> Iterator[Trial]:
    z, dy = make((n, len(tree.parents)), n), make((n, len(tree.order)), n + 1)
    yield Trial(PathSum("", 0), (z, *tree), exact)
    yield Trial(LeafSum("", 0), (dy, *tree[1:]), exact)


def _with_specials(shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = integers(shape, seed)
    values[0, 1], values[1, 2], values[-1, -1] = np.nan, np.inf, -np.inf
    return values


def _broken() -> Iterator[Tables]:
    """Numbers that are no node or leaf, a path without an end, too many leaves."""
    good = tables([4, 4, 5, 5, 5, -1])
    for field, at, value in (
        ("parents", 0, 6),
        ("parents", 1, 2**40),
        ("parents", 5, 4),
        ("order", 2, 4),
        ("order", 0, -1),
        ("first", 4, -(2**40)),
        ("first", 3, 2**62),
        ("leaves", 5, 5),
        ("leaves", 4, 2**63 - 1),
        ("leaves", 2, -1),
    ):
        table = getattr(good, field).copy()
        table[at] = value
        yield good._replace(**{field: table})


def test_kernels() -> None:
    wanted = list(tree_trials())
    assert check(wanted, get_backend("cpu"), "dense") == len(wanted)


def test_the_same_bits_on_any_number_of_threads() -> None:
    tree = random_tree(3000, 700, 2)
    compare(PathSum("", 0), normals((9, 3700), 0), *tree)
    compare(LeafSum("", 0), normals((9, 3000), 0), *tree[1:])
