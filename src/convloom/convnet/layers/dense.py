"""fc: every input times a matrix; treefc: a matrix made of columns along the paths of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convloom.convnet.layers.base import Definition, Extent, Initial, read_initial
from convloom.convnet.tree import ClassTree
from convloom.convnet.values import Values


@dataclass(frozen=True)
class Fc(Definition):
    """The sum of its inputs' products, and one bias an output."""

    outputs: int
    initial: Initial

    weighted: ClassVar[bool] = True
    inputs: ClassVar[tuple[int, int]] = (1, 1 << 16)

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent(self.outputs)

    def parameters(self, inputs: tuple[Extent, ...]) -> int:
        return sum(extent.count for extent in inputs) * self.outputs + self.outputs


@dataclass(frozen=True)
class TreeFc(Definition):
    """A product whose column for a class is the sum of those on its path from the tree's root.

    Attributes:
        tree: the class tree; None where nobody gave one.
    """

    classes: int
    initial: Initial
    tree: ClassTree | None

    weighted: ClassVar[bool] = True

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent(self.classes)

    def parameters(self, inputs: tuple[Extent, ...]) -> int | None:
        """A column for each node, a bias for each class."""
        return None if self.tree is None else inputs[0].count * self.tree.nodes + self.classes


def read_fc(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Fc:
    """``type=fc``."""
    return Fc(values.integer("outputs", least=1), read_initial(values, len(inputs)))


def read_treefc(values: Values, classes: int, tree: ClassTree | None) -> TreeFc:
    """``type=treefc``; the classes and their tree come with the data set."""
    if "weightSource" in values:
        raise values.error("is not for treefc", "weightSource")
    return TreeFc(classes, read_initial(values, 1), tree)
