"""fc: every input times a matrix; treefc: a matrix made of columns along the paths of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convloom.convnet.layers.base import Definition, Extent, Initial, read_initial
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
    """A product whose column for a class is the sum of those on its path from the tree's root."""

    classes: int
    initial: Initial

    weighted: ClassVar[bool] = True

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent(self.classes)

    def parameters(self, inputs: tuple[Extent, ...]) -> None:
        return None


def read_fc(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Fc:
    """``type=fc``."""
    return Fc(values.integer("outputs", least=1), read_initial(values, len(inputs)))


def read_treefc(
    values: Values, inputs: tuple[Extent, ...], notes: list[str], classes: int
) -> TreeFc:
    """``type=treefc``; the number of classes comes with the data set."""
    if "weightSource" in values:
        raise values.error("is not for treefc", "weightSource")
    return TreeFc(classes, read_initial(values, 1))
