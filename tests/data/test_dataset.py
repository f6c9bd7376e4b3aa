from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from convloom.data import (
    ArrayDataset,
    DataError,
    as_dataset,
    from_arrays,
    mean_image,
    normalise,
    statistics,
)
from convloom.ir.errors import ShapeError

rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (12, 3, 5, 7)).astype(np.uint8)
LABELS = np.arange(12) % 4


class TestFromArrays:
    def test_what_it_makes(self) -> None:
        data = from_arrays(IMAGES, LABELS, name="mine", split="train")
        assert len(data) == 12
        assert data.shape == (3, 5, 7)
        assert data.classes == ("0", "1", "2", "3")
        assert data.counts == (3, 3, 3, 3)
        assert data.labels.dtype == np.int64
        scaled = IMAGES / 255.0
        np.testing.assert_allclose(data.mean, scaled.mean((0, 2, 3)), rtol=1e-12)
        np.testing.assert_allclose(data.std, scaled.std((0, 2, 3)), rtol=1e-12)
        assert "12 images 3×5×7 uint8, 4 classes" in repr(data)

    def test_images_are_not_copied_and_cannot_be_changed(self) -> None:
        data = from_arrays(IMAGES, LABELS)
        assert np.shares_memory(data.images, IMAGES)
        with pytest.raises(ValueError):
            data.images[0] = 0
        IMAGES[0, 0, 0, 0] = IMAGES[0, 0, 0, 0]  # the owner still can

    def test_gray_images(self) -> None:
        assert from_arrays(IMAGES[:, 0], LABELS).shape == (1, 5, 7)
        assert from_arrays(IMAGES[0, 0], [1]).images.shape == (1, 1, 5, 7)
        assert from_arrays(IMAGES[0, 0], 1).labels.tolist() == [1]

    def test_floats_are_taken_as_they_are(self) -> None:
        data = from_arrays(IMAGES.astype(np.float64) - 3, LABELS)
        assert data.images.dtype == np.float32
        assert data.mean == data.std == ()
        batch = next(iter(data.batches(12)))
        np.testing.assert_array_equal(batch.images, IMAGES.astype(np.float32) - 3)

    def test_nhwc_is_not_guessed(self) -> None:
        nhwc = np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1))
        with pytest.raises(DataError, match=r"\(12, 5, 7, 3\), which looks like \(N, H, W, C\)"):
            from_arrays(nhwc, LABELS)
        np.testing.assert_array_equal(from_arrays(nhwc, LABELS, layout="NHWC").images, IMAGES)
        assert from_arrays(nhwc, LABELS, layout="NCHW").shape == (5, 7, 3)
        assert from_arrays(np.zeros((12, 5, 1, 1), np.float32), LABELS).shape == (5, 1, 1)
        with pytest.raises(DataError, match="'NCHW' or 'NHWC', not 'CHWN'"):
            from_arrays(nhwc, LABELS, layout="CHWN")

    @pytest.mark.parametrize(
        ("images", "labels", "words"),
        [
            (IMAGES, LABELS[:11], "12 images, but 11 labels"),
            (IMAGES, np.eye(4)[LABELS], r"for one-hot rows pass labels.argmax\(1\)"),
            (IMAGES, LABELS * 1.0, "labels are float64; expected integers"),
            (IMAGES, LABELS - 1, "label -1 of image 0 is outside 0 to 2"),
            (
                IMAGES.astype(np.int32),
                LABELS,
                "images are int32; pass pixels from 0 to 255 as uint8",
            ),
            (IMAGES.reshape(12, -1), LABELS, r"images.reshape\(N, C, H, W\)"),
            (IMAGES[None], LABELS, r"expected \(N, C, H, W\) or \(N, H, W\)"),
            (IMAGES[0], [1], "3 images, but 1 labels"),
        ],
    )
    def test_what_does_not_fit(self, images: np.ndarray, labels: np.ndarray, words: str) -> None:
        with pytest.raises(DataError, match=words):
            from_arrays(images, labels)

    def test_labels_beyond_the_classes(self) -> None:
        with pytest.raises(DataError, match=r"label 3 of image 3 is outside 0 to 2 \(3 classes\)"):
            from_arrays(IMAGES, LABELS, classes=["a", "b", "c"])

    def test_statistics_of_another_number_of_channels(self) -> None:
        with pytest.raises(DataError, match="mean has 1 values, uint8 images of 3 channels need 3"):
            from_arrays(IMAGES, LABELS, mean=[0.5])
        with pytest.raises(DataError, match="std above 0"):
            from_arrays(IMAGES, LABELS, std=[1, 0, 1])

    def test_no_images(self) -> None:
        data = from_arrays(np.zeros((0, 1, 4, 4), np.uint8), np.zeros(0, int), classes=["a"])
        assert len(data) == 0
        assert data.mean == (0.0,)
        assert data.std == (1.0,)
        assert data.counts == (0,)


class TestArrayDataset:
    data = from_arrays(IMAGES, LABELS, name="mine")

    def test_subset(self) -> None:
        part = self.data.subset([5, 0, 5])
        np.testing.assert_array_equal(part.images, IMAGES[[5, 0, 5]])
        np.testing.assert_array_equal(part.labels, [1, 0, 1])
        assert (part.classes, part.mean) == (self.data.classes, self.data.mean)
        assert len(self.data.subset([])) == 0
        for bad, words in (([12], "index 12"), ([-1], "index -1"), ([0.5], "a row of integers")):
            with pytest.raises(DataError, match=words):
                self.data.subset(bad)

    def test_take(self) -> None:
        part = self.data.take(5)
        assert len(part) == 5
        assert np.shares_memory(part.images, IMAGES)
        assert len(self.data.take(99)) == 12
        with pytest.raises(DataError, match="cannot take -1 images"):
            self.data.take(-1)

    def test_digest(self) -> None:
        again = from_arrays(IMAGES.copy(), LABELS.copy(), name="other")
        assert again.digest == self.data.digest
        assert len(again.digest) == 64
        changed = IMAGES.copy()
        changed[3, 1, 2, 2] ^= 1
        others = [
            from_arrays(changed, LABELS),
            from_arrays(IMAGES, LABELS[::-1]),
            from_arrays(IMAGES.reshape(12, 3, 7, 5), LABELS),
            from_arrays(IMAGES.astype(np.float32), LABELS),
            self.data.take(11),
        ]
        assert len({data.digest for data in [self.data, *others]}) == 6

    def test_it_is_checked_when_made_directly(self) -> None:
        with pytest.raises(DataError, match="labels are int32; expected int64"):
            ArrayDataset(
                "x", IMAGES, LABELS.astype(np.int32), tuple("0123"), (0.5,) * 3, (1.0,) * 3
            )
        with pytest.raises(DataError, match="images are float64"):
            ArrayDataset("x", IMAGES * 1.0, LABELS, tuple("0123"), (), ())


def test_normalise_is_the_stated_formula() -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    found = normalise(IMAGES, mean, std)
    m, s = (np.array(v)[:, None, None] for v in (mean, std))
    np.testing.assert_allclose(found, (IMAGES / 255.0 - m) / s, rtol=0, atol=5e-7)
    scale, shift = (1 / (255 * s)).astype(np.float32), (-m / s).astype(np.float32)
    products = (IMAGES.astype(np.float64) * scale).astype(np.float32)  # rounded once, as stated
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (products.astype(np.float64) + shift).astype(np.float32))
    with pytest.raises(ShapeError, match=r"expected \(n, 1, H, W\)"):
        normalise(IMAGES, (0.5,), (1.0,))
    with pytest.raises(ShapeError, match="only uint8 pixels are normalised"):
        normalise(found, mean, std)


def test_mean_images() -> None:
    """Of many images, exact; of another set; scalar; cropped with the images."""
    images = rng.integers(0, 256, (5000, 3, 6, 4)).astype(np.uint8)
    data = from_arrays(images, np.zeros(5000, int), name="many").centred()
    assert data.mean_image is not None
    np.testing.assert_array_equal(data.mean_image, images.mean(0).astype(np.float32))
    assert not data.mean_image.flags.writeable
    np.testing.assert_allclose(data.mean, images.mean((0, 2, 3)) / 255, rtol=1e-6)
    test = data.take(3).centred(data)
    assert test.mean_image is not None
    np.testing.assert_array_equal(test.mean_image, data.mean_image)
    cropped = test.centre_crop(2)
    assert cropped.mean_image is not None
    np.testing.assert_array_equal(cropped.mean_image, data.mean_image[:, 2:4, 1:3])
    scalar = data.centred(scalar=True)
    assert scalar.mean_image is None
    wanted = images[:2] - np.float32(data.mean_image.mean(dtype=np.float64))
    np.testing.assert_array_equal(scalar.normalise(images[:2]), wanted)
    with pytest.raises(DataError, match=r"mean image of many, \(3, 6, 4\), cannot be subtracted"):
        from_arrays(IMAGES, LABELS).centred(data)
    with pytest.raises(DataError, match=r"expected finite float32 \(3, 6, 4\)"):
        from_arrays(images, np.zeros(5000, int), mean_image=np.zeros((3, 6, 5)))
    with pytest.raises(DataError, match="leave the mean image out"):
        from_arrays(images / 255, np.zeros(5000, int), mean_image=np.zeros((3, 6, 4)))
    with pytest.raises(DataError, match="needs uint8 images"):
        mean_image(images[:0])


def test_batch_files_hold_all_images() -> None:
    data = replace(from_arrays(IMAGES, LABELS), files=(len(LABELS),))
    assert data.centre_crop(2).files == data.files
    assert data.take(2).files == data.subset([0]).files == ()
    with pytest.raises(DataError, match="batch files of 1 images in all"):
        replace(data, files=(1,))


def test_statistics_of_many_images() -> None:
    images = rng.integers(0, 256, (5000, 2, 3, 3)).astype(np.uint8)
    images[:, 1] = 9
    mean, std = statistics(images)
    np.testing.assert_allclose(mean, (images / 255.0).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, [(images[:, 0] / 255.0).std(), 1.0], rtol=1e-12)


def test_as_dataset() -> None:
    data = from_arrays(IMAGES, LABELS)
    assert as_dataset(data) is data
    assert as_dataset((IMAGES, LABELS)).digest == data.digest
    own = SimpleNamespace(images=IMAGES, labels=LABELS, classes=["a", "b", "c", "d"])
    assert as_dataset(own).classes == ("a", "b", "c", "d")
    with pytest.raises(DataError, match="dict is none of these"):
        as_dataset({})
