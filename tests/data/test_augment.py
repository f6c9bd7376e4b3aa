from __future__ import annotations

import numpy as np
import pytest

from convloom.data import (
    Augmentation,
    DataError,
    centre_crop,
    nine_views,
    ten_crops,
    ten_views,
)
from convloom.data.augment import Draws
from convloom.random import bits

IMAGES = np.random.default_rng(1).integers(0, 256, (6, 3, 8, 9)).astype(np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("fill", ["zero", "reflect"])
def test_against_a_plain_loop(fill: str, dtype: type) -> None:
    augment, images = Augmentation(padding=3, fill=fill), IMAGES.astype(dtype)
    draws = augment.draw(seed=5, epoch=2, count=100)
    indices = np.array([99, 0, 7, 7, 50, 3])
    result = augment.apply(images, draws, indices)
    assert result.dtype == dtype
    mode = {"zero": "constant", "reflect": "reflect"}[fill]
    padded = np.pad(images, ((0, 0), (0, 0), (3, 3), (3, 3)), mode=mode)  # type: ignore[call-overload]
    for i, index in enumerate(indices):
        words = [int(word) for word in bits(5, "augment", 2, 4 * int(index), 4)]
        row, column = (word * 7 >> 32 for word in words[:2])
        expected = padded[i, :, row : row + 8, column : column + 9]
        if words[2] & 1:
            expected = expected[:, :, ::-1]
        np.testing.assert_array_equal(result[i], expected)


def test_draws_are_spread_evenly() -> None:
    draws = Augmentation(padding=4).draw(seed=0, epoch=0, count=9000)
    for offsets in (draws.row, draws.column):
        counts = np.bincount(offsets, minlength=9)
        assert len(counts) == 9
        assert counts.min() > 880
        assert counts.max() < 1120
    assert 4350 < draws.flip.sum() < 4650
    assert abs(np.corrcoef(draws.row, draws.column)[0, 1]) < 0.04


def test_draws_depend_on_seed_epoch_and_sample_alone() -> None:
    augment = Augmentation()
    few, many = augment.draw(1, 3, 10), augment.draw(1, 3, 1000)
    for name in ("row", "column", "flip"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:10])
    for other in (augment.draw(1, 4, 1000), augment.draw(2, 3, 1000)):
        assert (other.row != many.row).mean() > 0.8


def test_nothing_to_do_gives_a_copy() -> None:
    augment = Augmentation(padding=0, flip=False)
    result = augment.apply(IMAGES, augment.draw(0, 0, 6), np.arange(6))
    np.testing.assert_array_equal(result, IMAGES)
    assert not np.shares_memory(result, IMAGES)


def test_extreme_offsets() -> None:
    augment = Augmentation(padding=4)
    ends, no = np.array([0, 8], np.uint8), np.zeros(2, bool)
    result = augment.apply(IMAGES[:2], Draws(ends, ends, no), np.arange(2))
    assert not result[0, :, :4].any()
    np.testing.assert_array_equal(result[0, :, 4:, 4:], IMAGES[0, :, :4, :5])
    np.testing.assert_array_equal(result[1, :, :4, :5], IMAGES[1, :, 4:, 4:])


def test_no_images() -> None:
    augment = Augmentation()
    result = augment.apply(IMAGES[:0], augment.draw(0, 0, 6), np.arange(0))
    assert result.shape == (0, 3, 8, 9)


def test_bad_values() -> None:
    with pytest.raises(DataError, match="padding must be 0 to 127 pixels, it is -1"):
        Augmentation(padding=-1)
    with pytest.raises(DataError, match="'zero' or 'reflect', not 'edge'"):
        Augmentation(fill="edge")
    Augmentation(padding=7, fill="reflect").check(8, 9)
    with pytest.raises(DataError, match="8×9 cannot be mirrored by 8 pixels"):
        Augmentation(padding=8, fill="reflect").check(8, 9)


@pytest.mark.parametrize(("padding", "fill"), [(0, "zero"), (2, "zero"), (1, "reflect")])
def test_crops_of_another_size(padding: int, fill: str) -> None:
    augment = Augmentation(padding=padding, fill=fill, size=5)
    draws = augment.draw(seed=1, epoch=4, count=50, extent=(8, 9))
    indices = np.array([49, 0, 0, 17])
    result = augment.apply(IMAGES[:4], draws, indices)
    mode = {"zero": "constant", "reflect": "reflect"}[fill]
    sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(IMAGES[:4], sides, mode=mode)  # type: ignore[call-overload]
    for i, index in enumerate(indices):
        words = [int(word) for word in bits(1, "augment", 4, 4 * int(index), 4)]
        row = words[0] * (8 - 5 + 2 * padding + 1) >> 32
        column = words[1] * (9 - 5 + 2 * padding + 1) >> 32
        expected = padded[i, :, row : row + 5, column : column + 5]
        np.testing.assert_array_equal(result[i], expected[:, :, ::-1] if words[2] & 1 else expected)
    assert draws.row.max() == 3 + 2 * padding
    assert draws.column.max() == 4 + 2 * padding
    assert augment.shape((3, 8, 9)) == (3, 5, 5)


def test_crops_may_begin_far_inside() -> None:
    draws = Augmentation(padding=0, size=8).draw(0, 0, 500, (600, 8))
    assert draws.row.dtype == np.uint16
    assert 560 < draws.row.max() <= 592
    assert not draws.column.any()


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(DataError, match=r"8×9 with 1 pixels of padding have no crop of 11×11"):
        Augmentation(padding=1, size=11).check(8, 9)
    with pytest.raises(DataError, match="size must be at least 1"):
        Augmentation(size=0)
    with pytest.raises(DataError, match="noise must be 0 or more"):
        Augmentation(noise=float("nan"))
    for crop in (centre_crop, ten_crops, ten_views, nine_views):
        with pytest.raises(DataError, match=r"8×9 have no crop of 9×9"):
            crop(IMAGES, 9)


def test_colour_noise_depends_on_seed_epoch_and_sample_alone() -> None:
    augment = Augmentation(padding=0, noise=0.1)
    few, many = augment.draw(1, 3, 10).noise, augment.draw(1, 3, 4000).noise
    assert few is not None
    assert many is not None
    np.testing.assert_array_equal(few, many[:10])
    assert many.std(axis=0) == pytest.approx([0.1] * 3, rel=0.05)
    other = augment.draw(1, 4, 10).noise
    assert other is not None
    assert (other != few).all()


def test_centre_and_ten_crops() -> None:
    middle = centre_crop(IMAGES, 5)  # round((8 - 5) / 2) = 2, round((9 - 5) / 2) = 2
    np.testing.assert_array_equal(middle, IMAGES[:, :, 2:7, 2:7])
    crops = ten_crops(IMAGES, 5)
    plain = [
        IMAGES[:, :, :5, :5],
        IMAGES[:, :, :5, 4:],
        IMAGES[:, :, 3:, :5],
        IMAGES[:, :, 3:, 4:],
        middle,
    ]
    for crop, expected in zip(crops, [*plain, *(p[..., ::-1] for p in plain)], strict=True):
        np.testing.assert_array_equal(crop, expected)


def test_views_of_cuda_convnet() -> None:
    """A border of 2: offsets (row, column) in its order, then mirrored; the grid row by row."""
    images = np.ascontiguousarray(IMAGES[:, :, :, :8])
    offsets = ((0, 0), (0, 4), (2, 2), (4, 0), (4, 4))
    plain = [images[:, :, y : y + 4, x : x + 4] for y, x in offsets]
    found = ten_views(images, 4)
    for view, expected in zip(found, [*plain, *(p[..., ::-1] for p in plain)], strict=True):
        np.testing.assert_array_equal(view, expected)
    places = [(y, x) for y in (0, 2, 4) for x in (0, 2, 4)]
    for view, (y, x) in zip(nine_views(images, 4), places, strict=True):
        np.testing.assert_array_equal(view, images[:, :, y : y + 4, x : x + 4])
