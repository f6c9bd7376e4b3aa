"""The directions in which the colours of a set of images vary, and how far."""

from __future__ import annotations

import numpy as np

from convloom.data.errors import DataError

#: Images at a time; their sums of products stay whole numbers below 2^53, which are exact.
_PART = 64


def axes(images: np.ndarray) -> np.ndarray:
    """Principal axes of the pixels of uint8 images (N, 3, H, W), float64 (3, 3).

    Row i is an eigenvector of the covariance of (R, G, B) over all pixels, as long as the pixels'
    deviation along it, in units of a pixel's 0 to 255; the longest comes last. Noise of deviation
    d along each axis is ``normal(3) * d @ axes``, after section 4.1 of Krizhevsky, Sutskever and
    Hinton, NIPS 2012. (The paper multiplies by eigenvalues; it is the deviations, their square
    roots, that give the 0.1 it names its meaning for pixels of any scale.)

    Raises:
        DataError: images of other types or channels.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise DataError(
            f"colour noise needs uint8 images of 3 channels, these are {images.dtype} "
            f"{images.shape}"
        )
    count = images.shape[0] * images.shape[2] * images.shape[3]
    sums, products = np.zeros(3), np.zeros((3, 3))
    for start in range(0, len(images), _PART):
        part = images[start : start + _PART].transpose(1, 0, 2, 3).reshape(3, -1)
        pixels = part.astype(np.float64)
        sums += pixels.sum(axis=1)
        products += pixels @ pixels.T
    mean = sums / max(count, 1)
    covariance = products / max(count, 1) - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    found = vectors.T * np.sqrt(np.maximum(values, 0.0))[:, None]
    # An eigenvector may be given either way round: its largest part is made positive.
    largest = np.abs(found).argmax(axis=1)
    signs = np.where(found[np.arange(3), largest] < 0, -1.0, 1.0)
    oriented: np.ndarray = found * signs[:, None]
    return oriented
