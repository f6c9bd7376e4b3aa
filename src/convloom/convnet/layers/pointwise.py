"""Layers that combine or change numbers one by one: hs, softmax, eltsum, eltmax, concat, neuron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convloom.convnet.layers.base import Definition, Extent
from convloom.convnet.neurons import IDENTITY, Neuron, parse_neuron
from convloom.convnet.values import Values


@dataclass(frozen=True)
class Same(Definition):
    """A layer that hands on as many numbers as it takes; ``softmax`` among them."""

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent(inputs[0].count)


@dataclass(frozen=True)
class Softmax(Same):
    """Exponentials over their sum, over everything that comes in."""


@dataclass(frozen=True)
class HalfSparse(Same):
    """Dropout as it was in 2012: kept with probability ``keep`` and not scaled; scaled in tests."""

    keep: float = 0.5


@dataclass(frozen=True)
class Apply(Same):
    """A neuron as a layer of its own."""

    function: Neuron = IDENTITY


@dataclass(frozen=True)
class EltSum(Same):
    """The sum of its inputs, each times a coefficient."""

    coefficients: tuple[float, ...] = (1.0,)
    inputs: ClassVar[tuple[int, int]] = (1, 1 << 16)


@dataclass(frozen=True)
class EltMax(Same):
    """The largest of its inputs, number by number."""

    inputs: ClassVar[tuple[int, int]] = (2, 1 << 16)


@dataclass(frozen=True)
class Concat(Definition):
    """Its inputs one behind the other."""

    inputs: ClassVar[tuple[int, int]] = (1, 1 << 16)

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent(sum(extent.count for extent in inputs))


def read_softmax(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Softmax:
    """``type=softmax``."""
    return Softmax()


def read_hs(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> HalfSparse:
    """``type=hs``."""
    keep = values.number("keep")
    if not 0 < keep <= 1:
        raise values.error("must be more than 0 and at most 1", "keep")
    return HalfSparse(keep)


def read_neuron(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Apply:
    """``type=neuron``, whose function the key ``neuron`` names."""
    return Apply(neuron_of(values))


def neuron_of(values: Values) -> Neuron:
    """The key ``neuron``."""
    try:
        return parse_neuron(values.text("neuron"))
    except ValueError as error:
        raise values.error(str(error), "neuron") from error


def read_eltsum(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> EltSum:
    """``type=eltsum``."""
    _check_equal(values, inputs)
    return EltSum(values.numbers("coeffs", len(inputs), 1.0))


def read_eltmax(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> EltMax:
    """``type=eltmax``."""
    _check_equal(values, inputs)
    return EltMax()


def read_concat(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Concat:
    """``type=concat``."""
    return Concat()


def _check_equal(values: Values, inputs: tuple[Extent, ...]) -> None:
    sizes = sorted({extent.count for extent in inputs})
    if len(sizes) > 1:
        raise values.error(f"must be of one size, these have {sizes}", "inputs")
