"""rnorm, cnorm, cmrnorm: a value divided by a power of the squares around it."""

from __future__ import annotations

from dataclasses import dataclass

from convloom.convnet.layers.base import Definition, Extent, read_only_image
from convloom.convnet.values import Values


@dataclass(frozen=True)
class Norm(Definition):
    """Response normalisation.

    Attributes:
        kind: ``rnorm`` (window within a map), ``cnorm`` (the same, of what exceeds the window's
            mean), ``cmrnorm`` (the same pixel in neighbouring maps).
        size: side of the window, or number of maps.
        blocked: maps are taken in blocks of ``size``, not around each.
        scale, pow: from the layer file where it has them, as the earliest files do.
    """

    kind: str
    image: Extent
    size: int
    blocked: bool = False
    scale: float | None = None
    pow: float | None = None

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return self.image


def read_norm(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Norm:
    """``type=rnorm``, ``cnorm`` or ``cmrnorm``."""
    image = read_only_image(values, inputs)
    kind = values.text("type")
    key = "size"
    if key not in values and "sizeX" in values and not values.strict:
        key = "sizeX"
        notes.append(f"[{values.section.name}] says sizeX for size")
    size = values.integer(key, least=1)
    blocked = values.flag("blocked", False) if kind == "cmrnorm" else False
    if kind == "cmrnorm" and not 2 <= size <= image.channels:
        raise values.error(f"must be 2 to the {image.channels} channels", key)
    if values.strict:
        _check_kernels(values, kind, image)
    return Norm(kind, image, size, blocked, *_early(values, notes))


def _early(values: Values, notes: list[str]) -> tuple[float | None, float | None]:
    """Scale and power in the layer file: an earlier habit, which the final code ignores."""
    if values.strict or "scale" not in values or "pow" not in values:
        return None, None
    return values.number("scale"), values.number("pow")


def _check_kernels(values: Values, kind: str, image: Extent) -> None:
    if kind == "cmrnorm" and image.channels % 16:
        raise values.error("must be a multiple of 16", "channels")
    if kind != "cmrnorm" and image.channels > 3 and image.channels % 4:
        raise values.error("must be 1, 2, 3 or a multiple of 4", "channels")
