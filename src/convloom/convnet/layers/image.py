"""Fixed changes of an image: blur, nailbed (every so manieth pixel), href (mirror)."""

from __future__ import annotations

from dataclasses import dataclass

from convloom.convnet.layers.base import Definition, Extent, read_only_image
from convloom.convnet.values import Values


@dataclass(frozen=True)
class Blur(Definition):
    """A Gaussian along rows and columns, zeros outside the image."""

    image: Extent
    size: int
    deviation: float

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return self.image


@dataclass(frozen=True)
class Nailbed(Definition):
    """Every ``stride``-th pixel, the first chosen so that the rest is even on both sides."""

    image: Extent
    stride: int

    @property
    def start(self) -> int:
        """The first row and column taken."""
        return (self.image.side - self.stride * (self._side - 1)) // 2

    @property
    def _side(self) -> int:
        return -(-self.image.side // self.stride)

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent.image(self.image.channels, self._side)


@dataclass(frozen=True)
class Mirror(Definition):
    """The image from right to left."""

    image: Extent

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return self.image


def read_blur(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Blur:
    """``type=blur``."""
    image = read_only_image(values, inputs)
    size = values.integer("filterSize", least=1)
    if size not in (3, 5, 7, 9):
        raise values.error("must be 3, 5, 7 or 9", "filterSize")
    if size > image.side:
        raise values.error(f"must be at most the input's side, {image.side}", "filterSize")
    deviation = values.number("stdev")
    if deviation <= 0:
        raise values.error("must be more than 0", "stdev")
    return Blur(image, size, deviation)


def read_nailbed(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Nailbed:
    """``type=nailbed``."""
    image = read_only_image(values, inputs)
    return Nailbed(image, values.integer("stride", least=1))


def read_href(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Mirror:
    """``type=href``."""
    image = read_only_image(values, inputs)
    if values.strict and image.channels > 3:
        raise values.error("must be 1 to 3", "channels")
    return Mirror(image)
