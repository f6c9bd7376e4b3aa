"""Images with their label and the classes that a network holds likeliest, as bars.

The manner is that of figure 4 of Krizhevsky, Sutskever and Hinton, "ImageNet classification with
deep convolutional neural networks", 2012.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.inspection.figures import BLUE, ORANGE, new_figure
from convloom.inspection.mosaic import scaled
from convloom.ir import ConvloomError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Images of a row, and characters of a class name.
_COLUMNS, _LETTERS = 4, 28
#: Inches: an image, a bar, between columns, what else a row has, above the first row.
_SIDE, _BAR, _GAP, _ROOM, _HEAD = 2.2, 0.2, 0.2, 0.42, 0.5
#: Images that are predicted at a time while errors are looked for.
_BATCH = 256


class PredictionError(ConvloomError, ValueError):
    """Images that cannot be shown, or none of the kind that was asked for."""


@dataclass(frozen=True, eq=False)
class Picked:
    """Images that were picked from a data set.

    Attributes:
        indices: (n,) where they lie in it.
        probabilities: (n, classes).
    """

    indices: np.ndarray
    probabilities: np.ndarray


def pick(
    labels: np.ndarray,
    predict: Callable[[np.ndarray], np.ndarray],
    count: int,
    *,
    seed: int = 0,
    only_errors: bool = False,
) -> Picked:
    """Images at random, the same for the same seed.

    Args:
        labels: (N,) of all images, of which class numbers they are.
        predict: gives the probabilities (n, classes) of the images at ``indices`` (n,).
        count: how many; fewer where there are no more.
        only_errors: of those whose likeliest class is another than their label's.

    Raises:
        PredictionError: no images, a count below 1, or no errors.
    """
    if count < 1:
        raise PredictionError(f"count={count!r} must be 1 or more")
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(labels))
    if not only_errors:
        order = order[:count]
    indices: list[int] = []
    rows: list[np.ndarray] = []
    for start in range(0, len(order), _BATCH):
        part = order[start : start + _BATCH]
        for index, row in zip(part.tolist(), predict(part), strict=True):
            if not only_errors or row.argmax() != labels[index]:
                indices.append(index)
                rows.append(row)
        if len(indices) >= count:
            break
    if not indices:
        why = "all are taken for their own class" if len(labels) else "there are none"
        raise PredictionError(f"of {len(labels):,} images none is to be shown: {why}")
    return Picked(np.array(indices[:count]), np.array(rows[:count]))


def likeliest(probabilities: np.ndarray, count: int) -> list[int]:
    """The ``count`` likeliest classes of one image, likeliest first; equal ones in their order."""
    order: list[int] = np.argsort(-probabilities, kind="stable")[:count].tolist()
    return order


def plot_predictions(
    images: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str] | None = None,
    *,
    top: int = 5,
) -> Figure:
    """A figure with two parts for each image: the image, its label above, and bars of the
    likeliest classes below, the label's own in orange.

    Args:
        images: (n, C, H, W) of 1 or 3 channels; uint8, or numbers that are brought to 0 to 1
            image by image.
        labels: (n,) class numbers.
        probabilities: (n, classes).
        classes: their names; by default their numbers.
        top: bars of an image, fewer where there are not so many classes.

    Raises:
        PredictionError: shapes that do not fit each other, or images of other channels.
    """
    pictures = _pictures(images)
    n, known = np.shape(probabilities)
    names = [str(k) for k in range(known)] if classes is None else list(classes)
    if not len(pictures) == len(labels) == n or len(names) != known or n == 0:
        raise PredictionError(
            f"{len(pictures)} images came with {len(labels)} labels and probabilities of {n} "
            f"images for {known} classes, {len(names)} of which have names"
        )
    top = min(top, known)
    columns, bars = min(n, _COLUMNS), _BAR * top
    tall = _SIDE + bars + _ROOM
    width, height = columns * (_SIDE + _GAP) + _GAP, math.ceil(n / columns) * tall + _HEAD
    figure = new_figure(width, height, arranged=False)

    def part(left: float, top: float, tall: float) -> Any:
        return figure.add_axes(
            (left / width, 1 - (top + tall) / height, _SIDE / width, tall / height)
        )

    for at in range(n):
        left, below = _GAP + at % columns * (_SIDE + _GAP), _HEAD + at // columns * tall
        label = int(labels[at])
        _image(part(left, below, _SIDE), pictures[at], names[label])
        _bars(part(left, below + _SIDE + 0.05, bars), probabilities[at], label, names, top)
    caption = "orange: the label's own class"
    figure.text(0.5, 1 - 0.12 / height, caption, size=9, ha="center", va="center")
    return figure


def _pictures(images: np.ndarray) -> np.ndarray:
    """(n, H, W, 3) from 0 to 1, or (n, H, W) of one channel."""
    images = np.asarray(images)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise PredictionError(
            f"images of 1 or 3 channels, (n, C, H, W), can be shown, not those of shape "
            f"{images.shape}"
        )
    values = images / 255 if images.dtype == np.uint8 else scaled(images, each=True)
    return values[:, 0] if images.shape[1] == 1 else values.transpose(0, 2, 3, 1)


def _image(axes: Any, picture: np.ndarray, label: str) -> None:
    axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(shortened(label), size=9, parse_math=False)
    axes.set_axis_off()


def _bars(axes: Any, row: np.ndarray, label: int, names: Sequence[str], top: int) -> None:
    order = likeliest(row, top)
    axes.barh(
        range(top), row[order], height=0.9, color=[ORANGE if k == label else BLUE for k in order]
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(top - 0.5, -0.5)
    for place, k in enumerate(order):
        text = axes.text(
            0.02, place, shortened(names[k]), va="center", size=8, parse_math=False, clip_on=True
        )
        text.set_path_effects(_outline())
    axes.set_xticks([])
    axes.set_yticks([])


def _outline() -> list[Any]:
    """Names are read on the bars and beside them."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground="white")]


def shortened(name: str) -> str:
    """The name, its end left out where it is long."""
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
