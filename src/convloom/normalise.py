"""Pixels to network input: one formula, so that training, evaluation and prediction agree.

    y = float32(x) * scale + shift,   scale = float32(1 / (255 * std)), shift = float32(-mean / std)

a float32 multiply rounded, then a float32 add rounded (no fma), so any device can give the same
bits. A mean image has a mean for every pixel, in units of a pixel; what is subtracted is its middle
as large as the input, wherever in a larger image the input was taken from. With a ``std`` of 1/255
the scale is 1, and y is the difference, rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convloom.ir.errors import ShapeError

#: By which pixels keep their 0 to 255.
PIXELS = 1 / 255


def coefficients(
    mean: Sequence[float],
    std: Sequence[float],
    mean_image: np.ndarray | None = None,
    extent: tuple[int, int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(scale, shift), float32; scale is (C, 1, 1), shift too, or (C, H, W) with a mean image.

    Args:
        mean_image: float (C, H, W), 0 to 255; it takes the place of ``mean``.
        extent: height and width of the input; None for the mean image's own.

    Raises:
        ShapeError: an input that is larger than the mean image.
    """
    means, deviations = np.array(mean, np.float64), np.array(std, np.float64)
    scale = (1 / (255 * deviations)).astype(np.float32)[:, None, None]
    if mean_image is None:
        return scale, (-means / deviations).astype(np.float32)[:, None, None]
    middle = middle_of(mean_image, extent or (mean_image.shape[1], mean_image.shape[2]))
    shift = -middle.astype(np.float64) / (255 * deviations)[:, None, None]
    return scale, shift.astype(np.float32)


def middle_of(image: np.ndarray, extent: tuple[int, int]) -> np.ndarray:
    """The middle of images (…, H, W), as large as ``extent``; shares memory.

    Where it cannot be exact it is rounded as torchvision's CenterCrop does.

    Raises:
        ShapeError: the images are smaller.
    """
    spare = np.subtract(image.shape[-2:], extent)
    if (spare < 0).any():
        height, width = image.shape[-2:]
        raise ShapeError(f"{height}×{width} pixels have no middle of {extent[0]}×{extent[1]}")
    top, left = (round(int(rest) / 2) for rest in spare)
    return image[..., top : top + extent[0], left : left + extent[1]]


def normalise(
    images: np.ndarray,
    mean: Sequence[float],
    std: Sequence[float],
    mean_image: np.ndarray | None = None,
) -> np.ndarray:
    """uint8 images (n, C, H, W) as float32 of mean 0 and deviation 1.

    Raises:
        ShapeError: images that are not uint8, have another number of channels, or are larger than
            the mean image.
    """
    if images.dtype != np.uint8:
        raise ShapeError(f"only uint8 pixels are normalised, these are {images.dtype}")
    if images.ndim != 4 or images.shape[1] != len(mean):
        raise ShapeError(f"images have shape {images.shape}; expected (n, {len(mean)}, H, W)")
    extent = (images.shape[2], images.shape[3])
    return apply(images, *coefficients(mean, std, mean_image, extent))


def apply(images: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The formula above, with coefficients made once."""
    result: np.ndarray = np.multiply(images, scale, dtype=np.float32)
    result += shift
    return result
