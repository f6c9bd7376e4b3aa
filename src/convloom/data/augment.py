"""Random crops and flips of images on the host, the same for every batch size and order.

What happens to a sample is a function of (seed, epoch, index of the sample) alone: block
``index`` of the random stream "augment" at step ``epoch``; its words 0 and 1 choose the crop's
row and column, the lowest bit of word 2 the flip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convloom.data.errors import DataError
from convloom.random import bits

_STREAM = "augment"
_FILLS = ("zero", "reflect")


@dataclass(frozen=True)
class Draws:
    """What happens to each sample of an epoch.

    Attributes:
        row, column: (N,) uint8, where in the padded image the crop begins.
        flip: (N,) bool.
    """

    row: np.ndarray
    column: np.ndarray
    flip: np.ndarray


@dataclass(frozen=True)
class Augmentation:
    """A crop of the image's own size out of the image padded on every side, and a flip.

    Attributes:
        padding: pixels on each side, 0 to 127; 0 leaves the image in place.
        fill: what the padding holds: ``zero`` (black pixels) or ``reflect`` (the image mirrored
            at its border, which is not repeated).
        flip: left and right change places in half of the images.

    Raises:
        DataError: a value out of range.
    """

    padding: int = 4
    fill: str = "zero"
    flip: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.padding <= 127:
            raise DataError(f"the crop's padding must be 0 to 127 pixels, it is {self.padding}")
        if self.fill not in _FILLS:
            raise DataError(f"the crop's fill is 'zero' or 'reflect', not {self.fill!r}")

    @property
    def reflect(self) -> bool:
        """Whether the padding mirrors the image."""
        return self.fill == "reflect"

    def check(self, height: int, width: int) -> None:
        """Raises DataError for images too small to be mirrored as far as the padding goes."""
        if self.reflect and self.padding >= min(height, width):
            raise DataError(
                f"images of {height}×{width} cannot be mirrored by {self.padding} pixels; use a "
                "smaller padding or fill='zero'"
            )

    def draw(self, seed: int, epoch: int, count: int) -> Draws:
        """The draws of samples 0 to ``count`` - 1 in an epoch."""
        words = bits(seed, _STREAM, epoch, 0, 4 * count).reshape(count, 4)
        # The high half of word × positions: whole numbers only, so any device draws the same.
        positions = np.uint64(2 * self.padding + 1)
        crops = (words[:, :2].astype(np.uint64) * positions) >> np.uint64(32)
        row, column = np.ascontiguousarray(crops.astype(np.uint8).T)
        return Draws(row, column, (words[:, 2] & 1 == 1) & self.flip)

    def apply(self, images: np.ndarray, draws: Draws, indices: np.ndarray) -> np.ndarray:
        """Images (n, C, H, W), samples ``indices`` of the epoch, cropped and flipped; a new array.

        The type is kept.
        """
        result = self._crop(images, draws.row[indices], draws.column[indices])
        flipped = np.flatnonzero(draws.flip[indices])
        if flipped.size:
            result[flipped] = result[flipped, :, :, ::-1]
        return result

    def _crop(self, images: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        if not self.padding:
            return images.copy()
        n, _, height, width = images.shape
        padded = self._pad(images)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
        cropped: np.ndarray = windows[np.arange(n), :, row, column]
        return cropped

    def _pad(self, images: np.ndarray) -> np.ndarray:
        n, c, height, width = images.shape
        p = self.padding
        padded = np.zeros((n, c, height + 2 * p, width + 2 * p), images.dtype)
        padded[:, :, p : p + height, p : p + width] = images
        if self.reflect:
            rows = padded[:, :, :, p : p + width]
            rows[:, :, :p] = rows[:, :, 2 * p : p : -1]
            rows[:, :, p + height :] = rows[:, :, p + height - 2 : height - 2 : -1]
            padded[:, :, :, :p] = padded[:, :, :, 2 * p : p : -1]
            padded[:, :, :, p + width :] = padded[:, :, :, p + width - 2 : width - 2 : -1]
        return padded
