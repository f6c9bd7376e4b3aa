from __future__ import annotations

import numpy as np
import pytest

from convloom.data import Augmentation, DataError
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
