"""What every layer type shares: the extent of what flows, and the definition's contract."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from convloom.convnet.values import Values


@dataclass(frozen=True)
class Extent:
    """What one case holds at a layer: ``count`` numbers, as square maps where they are known.

    Attributes:
        channels: number of maps, 0 for a vector.
        side: height and width of each.
    """

    count: int
    channels: int = 0
    side: int = 0

    @classmethod
    def image(cls, channels: int, side: int) -> Extent:
        """Square maps."""
        return cls(channels * side * side, channels, side)


class Definition(ABC):
    """What a section says about its layer, checked against what flows in.

    Class attributes:
        weighted: the layer has weights and biases, and so rates in the parameter file.
        inputs: how many inputs the type takes: (least, most).
    """

    weighted: ClassVar[bool] = False
    inputs: ClassVar[tuple[int, int]] = (1, 1)

    @abstractmethod
    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        """What the layer hands on."""

    def parameters(self, inputs: tuple[Extent, ...]) -> int | None:
        """Number of weights and biases; None where it depends on a class tree."""
        return 0


def read_image(values: Values, extent: Extent, channels: int) -> Extent:
    """An input read as ``channels`` square maps.

    Raises:
        ConfigError: its numbers do not make so many square maps.
    """
    each, rest = divmod(extent.count, channels)
    side = math.isqrt(each)
    if rest or side * side != each:
        raise values.error(
            f"does not fit: the input's {extent.count} numbers are not {channels} square maps",
            "channels",
        )
    return Extent.image(channels, side)


def read_images(values: Values, inputs: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Every input read as the maps that the key ``channels`` says."""
    channels = values.integers("channels", len(inputs), least=1)
    return tuple(read_image(values, *pair) for pair in zip(inputs, channels, strict=True))


def read_only_image(values: Values, inputs: tuple[Extent, ...]) -> Extent:
    """The one input of a layer that takes no more, read as the maps that ``channels`` says.

    Raises:
        ConfigError: several inputs, or numbers that do not make so many square maps.
    """
    if len(inputs) != 1:
        kind = values.text("type")
        raise values.error(f"must be 1 for {kind}, there are {len(inputs)}", "inputs")
    return read_images(values, inputs)[0]


@dataclass(frozen=True)
class Initial:
    """How a layer's weights begin: normal with a standard deviation each, biases a constant.

    Attributes:
        sources: {``initwfunc``: text} for values that the original took from a person's Python.
        shared: for every input the layer (and which of its inputs) whose weights serve, or None.
    """

    weights: tuple[float, ...]
    bias: float
    sources: tuple[tuple[str, str], ...] = ()
    shared: tuple[tuple[str, int] | None, ...] = ()


def read_initial(values: Values, count: int) -> Initial:
    """The keys initW, initB, their Python forms, and weightSource."""
    functions = ("initWFunc", "initBFunc", "initCFunc")
    return Initial(
        weights=values.numbers("initW", count, least=0.0),
        bias=values.number("initB", 0.0),
        sources=tuple((key, values.text(key)) for key in functions if key in values),
        shared=_shared(values, count),
    )


def _shared(values: Values, count: int) -> tuple[tuple[str, int] | None, ...]:
    if "weightSource" not in values:
        return (None,) * count
    shared: list[tuple[str, int] | None] = []
    for text in values.texts("weightSource", count):
        name, bracket, rest = text.partition("[")
        number = rest.rstrip("] ").strip()
        if bracket and not (rest.rstrip().endswith("]") and re.fullmatch("[0-9]{1,9}", number)):
            raise values.error("must be a layer or layer[number of its input]", "weightSource")
        shared.append((name.strip(), int(number or 0)) if name.strip() else None)
    return tuple(shared)
