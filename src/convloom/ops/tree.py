"""Sums along the paths of a class tree, which make the scores of nodes those of classes.

A softmax tree has a column of weights for every node; a class's column is the sum of those on the
path from the root to its leaf. As products are linear, its score is the sum of those nodes' scores:

    y[n,k] = sum of z[n,j] over the nodes j from leaf k up to the root         PathSum
    dz[n,j] = sum of dy[n,k] over the leaves k below node j                    LeafSum, its gradient

So no matrix of the classes' own columns is made, which would be as large as all weights.

A tree of M nodes, C of them leaves, is given by int64 tensors. Node k is class k's leaf for k < C;
the rest follow in any order:

    parents (M,)   the node above each; -1 above the root
    first (M,)     where the leaves below each node begin in ``order``; a leaf is below itself
    leaves (M,)    how many there are
    order (C,)     the leaves as a walk through the tree meets them, node by node together

What lies outside of the tree (a number that is no node, a path without an end) makes NaN.
Source: the ``treefc`` layers of cuda-convnet (Krizhevsky, 2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet


@dataclass(frozen=True)
class _TreeSum(Op):
    """What both share.

    Attributes:
        tree: a fingerprint, so that networks with different trees are different ones.
        terms: the nodes on all paths, counted on each.
    """

    tree: str
    terms: int

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].shape[0] * self.terms


@dataclass(frozen=True)
class PathSum(_TreeSum):
    """Inputs z (N,M), parents (M,), first (M,), leaves (M,), order (C,); output y (N,C).

    Adds from the leaf upwards. ``first`` and ``leaves`` are for the gradient alone.
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        z, parents, first, leaves, order = inputs
        _check_tables((parents, first, leaves), order)
        _check_rows(z, parents, "nodes")
        return (TensorSpec((z.shape[0], order.shape[0]), z.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        z, parents, order = inputs[0], inputs[1], inputs[4]
        y = np.zeros((len(z), len(order)), z.dtype)
        node = np.arange(len(order))
        for _ in parents:
            y[:, node >= len(parents)] = np.nan
            walking = (node >= 0) & (node < len(parents))
            y[:, walking] += z[:, node[walking]]
            node = np.where(walking, parents[np.where(walking, node, 0)], -1)
        y[:, node >= 0] = np.nan
        return (y,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        op = LeafSum(self.tree, self.terms)
        return [*scope.add(op, dy, *scope.node.inputs[2:]), None, None, None, None]


@dataclass(frozen=True)
class LeafSum(_TreeSum):
    """Inputs dy (N,C), first (M,), leaves (M,), order (C,); output dz (N,M)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, first, leaves, order = inputs
        _check_tables((first, leaves), order)
        _check_rows(dy, order, "leaves")
        return (TensorSpec((dy.shape[0], first.shape[0]), dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, first, leaves, order = inputs
        known = (order >= 0) & (order < len(order))
        walked = np.where(known, dy[:, np.where(known, order, 0)], dy.dtype.type(np.nan))
        dz = np.full((len(dy), len(first)), np.nan, dy.dtype)
        for node, (begin, count) in enumerate(zip(first, leaves, strict=True)):
            if 0 <= begin <= begin + count <= len(order):
                dz[:, node] = walked[:, begin : begin + count].sum(axis=1)
        return (dz,)


def _check_tables(nodes: Sequence[TensorSpec], order: TensorSpec) -> None:
    """Raises ShapeError for tables that cannot be those of one tree."""
    tables = (*nodes, order)
    if any(table.dtype != "int64" or len(table.shape) != 1 for table in tables):
        given = ", ".join(str(table) for table in tables)
        raise ShapeError(f"a tree's tables are int64 and of one axis, these are {given}")
    if len({table.shape for table in nodes}) > 1 or not 0 < order.size <= nodes[0].size:
        sizes = ", ".join(str(table.size) for table in nodes)
        raise ShapeError(f"a tree's tables cannot be of {sizes} nodes and {order.size} leaves")


def _check_rows(x: TensorSpec, table: TensorSpec, what: str) -> None:
    if x.shape[1:] != table.shape:
        raise ShapeError(f"a tree of {table.size} {what} takes (N, {table.size}), not {x.shape}")
