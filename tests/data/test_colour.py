from __future__ import annotations

import numpy as np
import pytest

from convloom.data import Augmentation, Batches, DataError, from_arrays
from convloom.data.colour import axes

IMAGES = np.random.default_rng(2).integers(0, 256, (70, 3, 6, 5)).astype(np.uint8)
IMAGES[:, 1] = IMAGES[:, 0] // 2 + IMAGES[:, 1] // 3


def test_axes_explain_the_covariance() -> None:
    found = axes(IMAGES)
    pixels = IMAGES.transpose(1, 0, 2, 3).reshape(3, -1)
    np.testing.assert_allclose(found.T @ found, np.cov(pixels, bias=True), rtol=1e-9)
    lengths = np.linalg.norm(found, axis=1)
    assert (np.diff(lengths) > 0).all()
    np.testing.assert_allclose((found @ found.T) / np.outer(lengths, lengths), np.eye(3), atol=1e-9)
    assert (found[np.arange(3), np.abs(found).argmax(1)] > 0).all()


def test_one_colour_has_no_axes() -> None:
    assert not axes(np.full((2, 3, 4, 4), 7, np.uint8)).any()
    with pytest.raises(DataError, match="needs uint8 images of 3 channels"):
        axes(IMAGES[:, :1])
    with pytest.raises(DataError, match="needs uint8 images of 3 channels"):
        axes(IMAGES.astype(np.float32))


@pytest.mark.parametrize("size", [None, 4])
def test_batches_hold_pixels_moved_along_the_axes(size: int | None) -> None:
    dataset = from_arrays(IMAGES, np.zeros(70, np.int64))
    augment = Augmentation(padding=1, noise=0.3, size=size)
    batches = Batches(dataset, 32, seed=4, augment=augment)
    draws = augment.draw(4, 2, 70, (6, 5))
    assert draws.noise is not None
    assert batches.crops == (1, False, size, True)
    assert batches.shape == (3, size or 6, size or 5)
    seen, shifts = 0, batches.shifts(2)
    assert shifts is not None
    assert (shifts.dtype, shifts.shape) == (np.float32, (70, 3))
    scale = batches.coefficients[0]
    for batch, raw in zip(batches.epoch(2), batches.raw(2), strict=True):
        moved = raw.images + (draws.noise[batch.indices] @ axes(IMAGES))[:, :, None, None]
        mean, std = (np.array(v)[:, None, None] for v in (dataset.mean, dataset.std))
        np.testing.assert_allclose(batch.images, (moved / 255 - mean) / std, atol=2e-5)
        assert batch.images.shape[1:] == batches.shape
        same = raw.images * scale + shifts[batch.indices][:, :, None, None]
        np.testing.assert_array_equal(batch.images, same)
        seen += len(batch)
    assert seen == 70


def test_noise_does_not_depend_on_the_batch() -> None:
    def made(batch_size: int, shuffle: bool) -> np.ndarray:
        dataset = from_arrays(IMAGES, np.zeros(70, np.int64))
        augment = Augmentation(padding=0, noise=0.1, size=4)
        batches = Batches(dataset, batch_size, seed=1, shuffle=shuffle, augment=augment)
        parts = list(batches.epoch(3))
        order = np.concatenate([part.indices for part in parts])
        return np.concatenate([part.images for part in parts])[np.argsort(order)]

    np.testing.assert_array_equal(made(70, shuffle=False), made(9, shuffle=True))
