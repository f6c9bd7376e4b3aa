"""pool: the largest, mean or largest absolute value of windows that are clipped to the image."""

from __future__ import annotations

from dataclasses import dataclass

from convloom.convnet.layers.base import Definition, Extent, read_only_image
from convloom.convnet.values import Values

KINDS = ("max", "avg", "maxabs", "rand")


@dataclass(frozen=True)
class Pool(Definition):
    """Windows of ``size`` every ``stride``, the first at ``start``.

    An average divides by the pixels inside the image.
    """

    kind: str
    image: Extent
    size: int
    stride: int
    start: int
    outputs: int

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return Extent.image(self.image.channels, self.outputs)


def read_pool(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Pool:
    """``type=pool``."""
    image = read_only_image(values, inputs)
    size = values.integer("sizeX", least=1)
    stride = values.integer("stride", least=1)
    start = values.integer("start", 0)
    if size > image.side:
        raise values.error(f"must be at most the input's side, {image.side}", "sizeX")
    if stride > size:
        raise values.error("must be at most sizeX", "stride")
    if start > 0 and values.strict:
        raise values.error("must be 0 or less", "start")
    if start <= -size or start >= image.side:
        raise values.error("leaves the first window outside the image", "start")
    if values.strict and image.channels % 16:
        raise values.error("must be a multiple of 16", "channels")
    outputs = values.integer("outputsX", 0, least=0)
    fitting = 1 - (start + size - image.side) // stride
    if outputs and start + (outputs - 1) * stride >= image.side:
        raise values.error("puts the last window outside the image", "outputsX")
    return Pool(
        values.choice("pool", KINDS), image, size, stride, start, outputs or max(fitting, 1)
    )
