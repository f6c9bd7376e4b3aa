"""treefc as a module."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from convloom import random
from convloom.convnet.layers import Extent, TreeFc
from convloom.convnet.modules.base import as_vector
from convloom.convnet.modules.dense import DensePiece
from convloom.convnet.tree import ClassTree, stand_in
from convloom.nn import functional
from convloom.nn.layers.base import Layer
from convloom.nn.parameter import Buffer
from convloom.nn.tensor import SymbolicTensor
from convloom.ops import PathSum

#: The buffer of a treefc, by its name in the layer, that has the number of leaves below each node.
DIVISORS = "tree.leaves"


@dataclass(frozen=True)
class LeavesNormal:
    """Normal with a fixed deviation for the first rows, the leaves; 0 for those of inner nodes."""

    std: float
    leaves: int

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        rows = np.zeros(shape, np.float32)
        leaves = (self.leaves, *shape[1:])
        rows[: self.leaves] = random.normal(seed, name, leaves, std=self.std)
        return rows


class Paths(Layer):
    """The tables of a class tree, as buffers: a checkpoint holds the tree of its weights."""

    def __init__(self, tree: ClassTree) -> None:
        super().__init__()
        self._sum = PathSum(tree.fingerprint, tree.terms)
        for name, table in tree.tables.items():
            self.register_buffer(name, Buffer(table))

    def forward(self, scores: SymbolicTensor) -> SymbolicTensor:
        """The scores of classes (N, classes), by those of nodes (N, nodes)."""
        tables = (self.parents, self.first, self.leaves, self.order)
        return scores.tracer.apply(self._sum, scores, *tables, function="tree")


class TreeFcPiece(DensePiece):
    """A score for every node, summed along each class's path, and one bias a class.

    The matrix has a row for each node in the tree's order, classes first. Where no tree is given,
    the one of ``stand_in`` is taken, with a warning.
    """

    def __init__(self, layer: TreeFc, read: Extent, name: str) -> None:
        tree = layer.tree
        if tree is None:
            tree = stand_in(layer.classes)
            warnings.warn(
                f"[{name}] needs the tree of its {layer.classes} classes, which came with the data "
                "set in 2012; without tree= or --tree FILE a stand-in is taken, of "
                f"{tree.nodes - layer.classes} inner nodes over classes that follow each other",
                stacklevel=2,
            )
        super().__init__([(tree.nodes, read.count)], tree.classes, layer.initial)
        self.weights[0].initialiser = LeavesNormal(layer.initial.weights[0], tree.classes)
        self.tree = Paths(tree)

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        scores = functional.linear(as_vector(inputs[0]), self.weights[0])
        return functional.add_bias(self.tree(scores), self.biases)
