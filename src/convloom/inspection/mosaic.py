"""Many small pictures as one: filters or feature maps in rows and columns, with gaps between."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.inspection.figures import NOT_FINITE, PAPER, new_figure, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Pixels of a mosaic along a side, beyond which what lies in it could not be told apart.
_LARGEST = 400
#: Pixels that a patch is drawn with where there is room.
_WIDE = 10
#: Inches of a side, and numbers along it.
_INCHES, _TICKS = 8.0, 16
#: Inches: how wide a digit is, and how high a line.
_DIGIT, _LINE = 0.075, 0.16


@dataclass(frozen=True)
class Side:
    """What stands along a side: a title, and the number of each row or column (or none)."""

    title: str = ""
    numbers: Sequence[int] = ()


@dataclass(frozen=True)
class Mosaic:
    """Patches in rows and columns.

    Attributes:
        patches: row by row, (n, height, width) numbers, or (n, height, width, 3) colours from 0
            to 1. The last row need not be full.
        columns: patches of a row.
        left, below: what to write beside the rows and under the columns.
    """

    patches: np.ndarray
    columns: int
    left: Side = Side()
    below: Side = Side()

    @property
    def gap(self) -> int:
        """Pixels between patches; single pixels need none to be told apart."""
        height, width = self.patches.shape[1:3]
        return 0 if height == width == 1 else 1

    @property
    def zoom(self) -> int:
        """How many pixels wide and high a patch's pixels are drawn, so that gaps stay narrow."""
        height, width = map(int, self.patches.shape[1:3])
        rows = -(-len(self.patches) // self.columns)
        room = _LARGEST // max(rows * (height + 1), self.columns * (width + 1))
        return max(1, min(room, _WIDE // max(height, width)))

    @property
    def cell(self) -> tuple[int, int]:
        """Height and width of a drawn patch and the gap to the next."""
        height, width = self.patches.shape[1:3]
        return height * self.zoom + self.gap, width * self.zoom + self.gap

    def picture(self, between: float | Sequence[float]) -> np.ndarray:
        """All patches as one, (height, width) or (height, width, 3); ``between`` fills the rest."""
        count, _, _, *rest = self.patches.shape
        (tall, wide), gap, zoom = self.cell, self.gap, self.zoom
        rows = -(-count // self.columns)
        shape = (rows * tall + gap, self.columns * wide + gap, *rest)
        canvas = np.full(shape, between, np.float64)
        for at, patch in enumerate(self.patches):
            y, x = at // self.columns * tall + gap, at % self.columns * wide + gap
            drawn = patch.repeat(zoom, axis=0).repeat(zoom, axis=1)
            canvas[y : y + tall - gap, x : x + wide - gap] = drawn
        return canvas


def grid(patches: np.ndarray, what: str, first: int = 0) -> Mosaic:
    """Patches (n, height, width[, 3]) side by side, about as high as wide, without empty places
    where that can be."""
    count = len(patches)
    least = math.ceil(math.sqrt(count))
    columns = next((n for n in range(least, 2 * least) if count % n == 0), least)
    return Mosaic(
        patches, columns, Side(f"first {what} of the row", range(first, first + count, columns))
    )


def most_patches(pixels: int) -> int:
    """How many patches of this many pixels fit along a side."""
    return max(1, _LARGEST // (pixels + (pixels > 1)))


def limits(values: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest finite number; apart even where all are the same or none is."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def scaled(values: np.ndarray, *, each: bool) -> np.ndarray:
    """Numbers brought to 0 to 1, from the smallest to the largest; what is not finite stays.

    Args:
        each: every entry of the first axis by its own smallest and largest, not all by theirs.
    """
    if each:
        parts = [scaled(part, each=False) for part in values]
        return np.stack(parts) if parts else values
    low, high = limits(values)
    return (values - low) / (high - low)


def draw(
    mosaic: Mosaic,
    title: str,
    ends: tuple[float, float] = (0.0, 1.0),
    *,
    colours: str = "gray",
    bar: bool = False,
) -> Figure:
    """A figure of the mosaic. NaN and infinite numbers are magenta.

    Args:
        ends: the numbers at both ends of ``colours``, matplotlib's name of a map of colours.
        bar: whether a colour bar shall explain the numbers.
    """
    require_matplotlib()
    from matplotlib.colors import to_rgb

    in_colour = mosaic.patches.ndim == 4
    low, high = ends
    picture = mosaic.picture(to_rgb(PAPER) if in_colour else 2 * low - high)
    height, width = picture.shape[:2]
    scale = _INCHES / max(height, width)
    figure = new_figure(
        max(4.5, width * scale + (1.6 if bar else 0.7)), max(2.0, height * scale + 0.9)
    )
    axes = figure.subplots()
    mapping = {} if in_colour else _mapping(colours, low, high)
    shown = _with_wrong_ones(picture) if in_colour else picture
    image = axes.imshow(shown, interpolation="nearest", **mapping)
    lines = (textwrap.fill(line, int(12 * figure.get_figwidth())) for line in title.splitlines())
    figure.suptitle("\n".join(lines), size=11, parse_math=False)
    tall, wide = mosaic.cell
    digits = max((len(str(number)) for number in mosaic.below.numbers), default=1)
    _write(axes.xaxis, mosaic.below, wide, (_DIGIT * (digits + 1)) / scale)
    _write(axes.yaxis, mosaic.left, tall, _LINE / scale)
    axes.spines[:].set_visible(False)
    if bar:
        figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    return figure


def _mapping(name: str, low: float, high: float) -> dict[str, Any]:
    """How numbers become colours; the gaps hold what lies below all of them."""
    from matplotlib import colormaps

    colours = colormaps[name].with_extremes(under=PAPER, bad=NOT_FINITE)
    return {"cmap": colours, "vmin": low, "vmax": high}


def _with_wrong_ones(picture: np.ndarray) -> np.ndarray:
    """A picture in colour, magenta where a channel is not finite."""
    from matplotlib.colors import to_rgb

    sound = np.isfinite(picture).all(axis=2, keepdims=True)
    return np.where(sound, picture, to_rgb(NOT_FINITE))


def _write(axis: Any, side: Side, cell: int, room: float) -> None:
    """Number rows or columns, every second or fifth where they are many or narrow.

    Args:
        cell, room: pixels from one to the next, and those that a number takes.
    """
    many = len(side.numbers)
    step = next(n for n in _steps() if n * cell >= room and many <= _TICKS * n)
    places = range(0, many, step)
    axis.set_ticks([(at + 0.5) * cell - 0.5 for at in places], [side.numbers[at] for at in places])
    axis.set_tick_params(length=0, labelsize=8)
    axis.set_label_text(side.title, size=9)


def _steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 …"""
    return (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
