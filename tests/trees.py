"""Trees of classes for the tests, with their tables written out another way than ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Tables(NamedTuple):
    """What ops/tree.py takes of a tree, in its order."""

    parents: np.ndarray
    first: np.ndarray
    leaves: np.ndarray
    order: np.ndarray

    @property
    def paths(self) -> np.ndarray:
        """float64 (leaves, nodes): 1 where a node lies on a leaf's path."""
        found = np.zeros((len(self.order), len(self.parents)))
        for leaf in range(len(self.order)):
            node = leaf
            while node >= 0:
                found[leaf, node] = 1
                node = self.parents[node]
        return found

    @property
    def terms(self) -> int:
        """Nodes on all paths."""
        return int(self.paths.sum())

    def __str__(self) -> str:
        return f"{len(self.order)}of{len(self.parents)}"


def tables(parents: Sequence[int]) -> Tables:
    """The tables of a tree by the parent of each node, -1 above the root."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    (root,) = children[-1]
    order: list[int] = []
    first, leaves = ([0] * len(parents) for _ in range(2))

    def walk(node: int) -> None:
        first[node] = len(order)
        if node not in children:
            order.append(node)
        for child in children.get(node, ()):
            walk(child)
        leaves[node] = len(order) - first[node]

    walk(root)
    return Tables(*(np.array(one, np.int64) for one in (parents, first, leaves, order)))


def random_tree(classes: int, inner: int, seed: int) -> Tables:
    """Inner nodes hang below random ones before them, leaves below any; none is left bare."""
    rng = np.random.default_rng(seed)
    above = [-1, *(int(rng.integers(i)) for i in range(1, inner))]
    bare = sorted(set(range(inner)) - set(above))
    below = [*bare, *(int(i) for i in rng.integers(inner, size=classes - len(bare)))]
    parents = [*rng.permutation(below), *above]
    return tables([p if p < 0 else int(p) + classes for p in parents])


#: A leaf alone; a flat one; the golden vectors'; chains of one child; deep and uneven ones.
TREES = (
    tables([-1]),
    tables([3, 3, 3, -1]),
    tables([4, 4, 5, 5, 5, -1]),
    tables([5, 3, 6, 4, 6, 4, -1]),
    random_tree(17, 6, 0),
    random_tree(100, 33, 1),
)
