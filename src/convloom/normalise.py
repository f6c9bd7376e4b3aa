"""Pixels to network input: one formula, so that training, evaluation and prediction agree.

    y = float32(x) * scale + shift,   scale = float32(1 / (255 * std)), shift = float32(-mean / std)

a float32 multiply rounded, then a float32 add rounded (no fma), so any device can give the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convloom.ir.errors import ShapeError


def coefficients(mean: Sequence[float], std: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """(scale, shift), each float32 of shape (C, 1, 1)."""
    means, deviations = np.array(mean, np.float64), np.array(std, np.float64)
    scale = (1 / (255 * deviations)).astype(np.float32)
    shift = (-means / deviations).astype(np.float32)
    return scale[:, None, None], shift[:, None, None]


def normalise(images: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """uint8 images (n, C, H, W) as float32 of mean 0 and deviation 1.

    Raises:
        ShapeError: images that are not uint8, or have another number of channels.
    """
    if images.dtype != np.uint8:
        raise ShapeError(f"only uint8 pixels are normalised, these are {images.dtype}")
    if images.ndim != 4 or images.shape[1] != len(mean):
        raise ShapeError(f"images have shape {images.shape}; expected (n, {len(mean)}, H, W)")
    return apply(images, *coefficients(mean, std))


def apply(images: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The formula above, with coefficients made once."""
    result: np.ndarray = np.multiply(images, scale, dtype=np.float32)
    result += shift
    return result
