"""Costs: what training makes small. They hand on nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convloom.convnet.layers.base import Definition, Extent
from convloom.convnet.values import Values


@dataclass(frozen=True)
class Cost(Definition):
    """A cost by its name: ``logreg``, ``crossent2``, ``rflickr`` (labels first) or ``sum2``."""

    kind: str

    inputs: ClassVar[tuple[int, int]] = (1, 2)

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent(0)


def read_cost(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Cost:
    """``type=cost.NAME``."""
    kind = values.text("type").removeprefix("cost.")
    wanted = 1 if kind == "sum2" else 2
    if len(inputs) != wanted:
        raise values.error(f"must be {wanted} for cost.{kind}, there are {len(inputs)}", "inputs")
    return Cost(kind)
