"""Random crops, flips and colour noise of images on the host, the same for every batch and order.

What happens to a sample is a function of (seed, epoch, index of the sample) alone: block
``index`` of the random stream "augment" at step ``epoch``; its words 0 and 1 choose the crop's
row and column, the lowest bit of word 2 the flip. Samples that share a draw have a block together.
Colour noise is drawn from a stream of its own, for each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.data.errors import DataError
from convloom.normalise import middle_of
from convloom.random import bits, normal

_STREAM = "augment"
_NOISE = "colour noise"
_FILLS = ("zero", "reflect")


@dataclass(frozen=True)
class Draws:
    """What happens to each sample of an epoch.

    Attributes:
        row, column: (N,) uint8, or uint16 where a crop may begin beyond 255: where in the padded
            image the crop begins.
        flip: (N,) bool.
        noise: (N, 3) float64, how far each goes along the axes of colour; None without noise.
    """

    row: np.ndarray
    column: np.ndarray
    flip: np.ndarray
    noise: np.ndarray | None = None


@dataclass(frozen=True)
class Augmentation:
    """A crop out of the image padded on every side, a flip, and noise of its colours.

    Attributes:
        padding: pixels on each side, 0 to 127; with 0 a crop of the image's own size leaves it in
            place.
        fill: what the padding holds: ``zero`` (black pixels) or ``reflect`` (the image mirrored
            at its border, which is not repeated).
        flip: left and right change places in half of the images.
        size: side of the crop; None keeps the image's own height and width.
        noise: deviation of what is added along each axis of the training pixels' colours, in
            deviations of the pixels along that axis (Krizhevsky, Sutskever and Hinton, NIPS 2012,
            section 4.1, have 0.1; see ``colour.axes``); 0 for none.
        damped: what noise was added to is divided by 1 + ``noise``, as their code did.
        shared: consecutive samples of a batch file that share one crop and one flip; that code
            drew once for 32.

    Raises:
        DataError: a value out of range.
    """

    padding: int = 4
    fill: str = "zero"
    flip: bool = True
    size: int | None = None
    noise: float = 0.0
    damped: bool = False
    shared: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.padding <= 127:
            raise DataError(f"the crop's padding must be 0 to 127 pixels, it is {self.padding}")
        if self.fill not in _FILLS:
            raise DataError(f"the crop's fill is 'zero' or 'reflect', not {self.fill!r}")
        if self.size is not None and self.size < 1:
            raise DataError(f"the crop's size must be at least 1 pixel, it is {self.size}")
        if not 0 <= self.noise < np.inf:
            raise DataError(f"the colour noise must be 0 or more, it is {self.noise}")
        if self.shared < 1:
            raise DataError(f"1 sample or more shares a draw, not {self.shared}")

    @property
    def damping(self) -> float:
        """What the network's input is divided by."""
        return 1.0 + self.noise if self.damped else 1.0

    @property
    def reflect(self) -> bool:
        """Whether the padding mirrors the image."""
        return self.fill == "reflect"

    def shape(self, image: tuple[int, int, int]) -> tuple[int, int, int]:
        """(C, H, W) of what becomes of images (C, H, W)."""
        channels, height, width = image
        return channels, self.size or height, self.size or width

    def check(self, height: int, width: int) -> None:
        """Raises DataError for images too small to be mirrored as far as the padding goes, or to
        be cropped."""
        if self.reflect and self.padding >= min(height, width):
            raise DataError(
                f"images of {height}×{width} cannot be mirrored by {self.padding} pixels; use a "
                "smaller padding or fill='zero'"
            )
        if (self.size or 0) > min(height, width) + 2 * self.padding:
            raise DataError(
                f"images of {height}×{width} with {self.padding} pixels of padding have no crop of "
                f"{self.size}×{self.size}; use a smaller size"
            )

    def draw(
        self,
        seed: int,
        epoch: int,
        count: int,
        extent: tuple[int, int] | None = None,
        sharing: np.ndarray | None = None,
    ) -> Draws:
        """The draws of samples 0 to ``count`` - 1 in an epoch.

        Args:
            extent: height and width of the images; needed where crops have a ``size``.
            sharing: (count,) int64, the block of the random stream that each sample takes; None:
                that of its index.
        """
        blocks = count if sharing is None else int(sharing.max(initial=-1)) + 1
        words = bits(seed, _STREAM, epoch, 0, 4 * blocks).reshape(blocks, 4)
        words = words if sharing is None else words[sharing]
        spare = (0, 0)
        if self.size is not None:
            assert extent is not None
            spare = extent[0] - self.size, extent[1] - self.size
        last = np.array(spare) + 2 * self.padding
        # The high half of word × positions: whole numbers only, so any device draws the same.
        crops = (words[:, :2].astype(np.uint64) * (last + 1).astype(np.uint64)) >> np.uint64(32)
        kind = np.uint8 if last.max() < 256 else np.uint16
        row, column = np.ascontiguousarray(crops.astype(kind).T)
        noise = normal(seed, _NOISE, (count, 3), std=self.noise, step=epoch) if self.noise else None
        return Draws(row, column, (words[:, 2] & 1 == 1) & self.flip, noise)

    def apply(self, images: np.ndarray, draws: Draws, indices: np.ndarray) -> np.ndarray:
        """Images (n, C, H, W), samples ``indices`` of the epoch, cropped and flipped; a new array.

        The type is kept. Colour noise is not of pixels, but of what they are normalised to; see
        ``Batches``.
        """
        result = self._crop(images, draws.row[indices], draws.column[indices])
        flipped = np.flatnonzero(draws.flip[indices])
        if flipped.size:
            result[flipped] = result[flipped, :, :, ::-1]
        return result

    def _crop(self, images: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        n, _, height, width = images.shape
        height, width = self.size or height, self.size or width
        if not self.padding and images.shape[2:] == (height, width):
            return images.copy()
        padded = self._pad(images)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
        cropped: np.ndarray = windows[np.arange(n), :, row, column]
        return cropped

    def _pad(self, images: np.ndarray) -> np.ndarray:
        n, c, height, width = images.shape
        p = self.padding
        if not p:
            return images
        padded = np.zeros((n, c, height + 2 * p, width + 2 * p), images.dtype)
        padded[:, :, p : p + height, p : p + width] = images
        if self.reflect:
            rows = padded[:, :, :, p : p + width]
            rows[:, :, :p] = rows[:, :, 2 * p : p : -1]
            rows[:, :, p + height :] = rows[:, :, p + height - 2 : height - 2 : -1]
            padded[:, :, :, :p] = padded[:, :, :, 2 * p : p : -1]
            padded[:, :, :, p + width :] = padded[:, :, :, p + width - 2 : width - 2 : -1]
        return padded


def centre_crop(images: np.ndarray, size: int) -> np.ndarray:
    """The middle of images (n, C, H, W), (n, C, size, size), as torchvision's CenterCrop rounds.

    Shares memory. Raises DataError for images that are smaller.
    """
    height, width = images.shape[2:]
    _check_holds(height, width, size)
    return middle_of(images, (size, size))


def ten_crops(images: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
    """The four corners and the middle of images (n, C, H, W), then the same mirrored.

    Each is (n, C, size, size) and shares memory. A network's predictions for the ten are averaged
    (Krizhevsky, Sutskever and Hinton, NIPS 2012, section 4.1). Raises DataError for images that
    are smaller.
    """
    crops = _parts(images, size, ((0, 0), (0, 2), (2, 0), (2, 2), (1, 1)))
    return (*crops, *(crop[:, :, :, ::-1] for crop in crops))


def ten_views(images: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
    """What ``ten_crops`` gives, in cuda-convnet's order: the middle comes third, and eighth."""
    crops = _parts(images, size, ((0, 0), (0, 2), (1, 1), (2, 0), (2, 2)))
    return (*crops, *(crop[:, :, :, ::-1] for crop in crops))


def nine_views(images: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
    """Corners, sides and the middle of images (n, C, H, W), row by row, as cuda-convnet tested
    networks for CIFAR; none is mirrored.

    Each is (n, C, size, size) and shares memory. Raises DataError for images that are smaller.
    """
    return _parts(images, size, tuple((i, j) for i in range(3) for j in range(3)))


def _parts(
    images: np.ndarray, size: int, places: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, ...]:
    """Squares that begin after 0, 1 or 2 halves of what is left of rows and of columns."""
    height, width = images.shape[2:]
    _check_holds(height, width, size)
    tops, lefts = ((0, round((extent - size) / 2), extent - size) for extent in (height, width))
    return tuple(
        images[:, :, tops[i] : tops[i] + size, lefts[j] : lefts[j] + size] for i, j in places
    )


def _check_holds(height: int, width: int, size: int) -> None:
    if not 1 <= size <= min(height, width):
        raise DataError(f"images of {height}×{width} have no crop of {size}×{size}")
