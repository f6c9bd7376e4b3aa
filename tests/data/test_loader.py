from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from convloom.data import Augmentation, Batch, Batches, DataError, from_arrays
from convloom.data.colour import axes
from convloom.data.loader import prefetched

N = 103
DATA = from_arrays(
    np.random.default_rng(2).integers(0, 256, (N, 1, 6, 7)).astype(np.uint8), np.arange(N) % 10
)


def indices(batches: Iterator[Batch]) -> list[int]:
    return [int(i) for batch in batches for i in batch.indices]


def test_an_epoch_has_every_sample_once() -> None:
    loader = Batches(DATA, 25, seed=4)
    batches = list(loader.epoch(0))
    assert [len(batch) for batch in batches] == [25, 25, 25, 25, 3]
    assert len(loader) == 5
    assert loader.samples == N
    assert sorted(indices(iter(batches))) == list(range(N))


def test_batches_hold_normalised_images() -> None:
    for batch in Batches(DATA, 25, seed=4).epoch(1):
        assert batch.images.dtype == np.float32
        assert batch.images.flags.c_contiguous
        assert batch.images.flags.writeable
        np.testing.assert_array_equal(batch.images, DATA.normalise(DATA.images[batch.indices]))
        np.testing.assert_array_equal(batch.labels, DATA.labels[batch.indices])
        assert batch.labels.dtype == batch.indices.dtype == np.int64


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = [
        indices(Batches(DATA, 25, seed=seed).epoch(epoch)) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[1] == indices(Batches(DATA, 10, seed=0).epoch(1))
    assert all(order != sorted(order) for order in orders)


def test_without_shuffling_the_order_is_kept() -> None:
    assert indices(DATA.batches(7).epoch(3)) == list(range(N))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_epoch_taken_up_anywhere_gives_what_was_left(prefetch: int) -> None:
    loader = Batches(DATA, 10, seed=9, augment=Augmentation(2), prefetch=prefetch)
    whole = list(loader.epoch(2))
    for start in range(len(loader) + 1):
        rest = list(loader.epoch(2, start))
        assert len(rest) == len(whole) - start
        for left, right in zip(rest, whole[start:], strict=True):
            np.testing.assert_array_equal(left.indices, right.indices)
            np.testing.assert_array_equal(left.images, right.images)


def test_augmentation_does_not_depend_on_the_batch() -> None:
    def pixels(batch_size: int, shuffle: bool) -> dict[int, bytes]:
        loader = Batches(DATA, batch_size, seed=3, shuffle=shuffle, augment=Augmentation(2))
        return {
            int(index): image.tobytes()
            for batch in loader.epoch(1)
            for index, image in zip(batch.indices, batch.images, strict=True)
        }

    first = pixels(10, True)
    assert first == pixels(64, True) == pixels(1, True) == pixels(33, False)
    plain = {i: image.tobytes() for i, image in enumerate(DATA.normalise(DATA.images))}
    assert sum(first[i] != plain[i] for i in range(N)) > 90


def test_drop_last_is_for_training_only() -> None:
    loader = Batches(DATA, 25, drop_last=True)
    assert [len(batch) for batch in loader.epoch(0)] == [25] * 4
    assert len(loader) == 4
    assert loader.samples == 100
    with pytest.raises(DataError, match="the same samples out of every evaluation"):
        DATA.batches(25, drop_last=True)


def test_batches_do_not_share_memory() -> None:
    first, second = list(DATA.batches(60).epoch(0))
    kept = first.images.copy()
    second.images[:] = 0
    first.indices[:] = 0
    np.testing.assert_array_equal(first.images, kept)
    assert indices(DATA.batches(60).epoch(0)) == list(range(N))


def test_empty_data_and_bad_values() -> None:
    assert list(DATA.take(0).batches(8).epoch(0)) == []
    for values, words in (
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"batch_size": 8, "seed": -1}, "seed must be in"),
        ({"batch_size": 8, "prefetch": -1}, "0 or more: -1"),
        ({"batch_size": 8, "augment": Augmentation(6, "reflect")}, "cannot be mirrored"),
    ):
        with pytest.raises(DataError, match=words):
            Batches(DATA, **values)  # type: ignore[arg-type]
    for epoch, start in ((-1, 0), (0, 6), (0, -1)):
        with pytest.raises(DataError, match="there is no batch"):
            Batches(DATA, 25).epoch(epoch, start)


class TestPrefetched:
    def loader_threads(self) -> int:
        return sum(thread.name == "convloom-loader" for thread in threading.enumerate())

    def test_same_items_and_no_thread_left(self) -> None:
        for ahead in (1, 2, 50):
            assert list(prefetched(iter(range(20)), ahead)) == list(range(20))
        assert self.loader_threads() == 0

    def test_never_more_than_that_many_ahead(self) -> None:
        made: list[int] = []

        def source() -> Iterator[int]:
            for i in range(20):
                made.append(i)
                yield i

        for taken, _ in enumerate(prefetched(source(), 2), start=1):
            time.sleep(0.002)
            assert len(made) <= taken + 2

    def test_exceptions_arrive_after_the_items_before_them(self) -> None:
        def source() -> Iterator[int]:
            yield 1
            yield 2
            raise DataError("disk gone")

        items = prefetched(source(), 2)
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(DataError, match="disk gone"):
            next(items)
        assert self.loader_threads() == 0

    def test_leaving_early_ends_the_thread(self) -> None:
        for _ in Batches(DATA, 5, prefetch=2).epoch(0):
            assert self.loader_threads() == 1
            break
        assert self.loader_threads() == 0


class TestFiles:
    """Batch files, each cut by itself."""

    FILES = (40, 33, 30)

    def test_each_file_ends_with_a_batch_of_its_own_size(self) -> None:
        loader = Batches(DATA, 16, shuffle=False, files=self.FILES)
        assert loader.sizes == [16, 16, 8, 16, 16, 1, 16, 14]
        assert [len(batch) for batch in loader.epoch(0)] == loader.sizes
        assert len(loader) == 8
        assert indices(loader.epoch(2)) == list(range(N))
        assert [len(batch) for batch in loader.epoch(0, 5)] == [1, 16, 14]
        assert indices(Batches(DATA, 16, files=self.FILES).epoch(1)) == indices(
            Batches(DATA, 103).epoch(1)
        )

    def test_files_of_other_data(self) -> None:
        for files in ((40, 40), (103, 0), (-1, 104)):
            with pytest.raises(DataError, match="batch files hold"):
                Batches(DATA, 16, files=files)
        with pytest.raises(DataError, match="the end of every batch file"):
            Batches(DATA, 16, drop_last=True, files=self.FILES)
        with pytest.raises(DataError, match="True, False or 'once', not 'twice'"):
            Batches(DATA, 16, shuffle="twice")

    def test_once_is_one_random_order(self) -> None:
        loader = Batches(DATA, 16, seed=1, shuffle="once", files=self.FILES)
        first = indices(loader.epoch(0))
        assert first == indices(loader.epoch(7))
        assert first != list(range(N))
        assert sorted(first) == list(range(N))
        assert first != indices(Batches(DATA, 16, seed=2, shuffle="once").epoch(0))

    @pytest.mark.parametrize("shuffle", [False, True, "once"])
    def test_consecutive_samples_of_a_file_share_a_draw(self, shuffle: bool | str) -> None:
        augment = Augmentation(padding=2, shared=32)
        loader = Batches(DATA, 16, seed=6, shuffle=shuffle, augment=augment, files=self.FILES)
        draws = loader.draws(3)
        assert draws is not None
        in_order = draws[loader.order(3)]
        groups = [in_order[a:b] for a, b in ((0, 32), (32, 40), (40, 72), (72, 73), (73, 103))]
        assert all((group == group[0]).all() for group in groups)
        assert len({group[0].tobytes() for group in groups}) > 3
        once = Batches(DATA, 16, seed=6, shuffle=shuffle, files=self.FILES, augment=augment)
        np.testing.assert_array_equal(draws, once.draws(3))


class TestMeanImage:
    """Pixels but for the middle of the training images' mean."""

    draw = np.random.default_rng(5)
    PIXELS = draw.integers(0, 256, (9, 3, 8, 10)).astype(np.uint8)
    DATA = from_arrays(PIXELS, np.arange(9) % 3).centred()

    def test_the_difference_is_rounded_once(self) -> None:
        exact = self.PIXELS - self.DATA.mean_image.astype(np.float64)  # type: ignore[union-attr]
        (batch,) = self.DATA.batches(9).epoch(0)
        np.testing.assert_array_equal(batch.images, exact.astype(np.float32))
        np.testing.assert_array_equal(self.DATA.normalise(self.PIXELS), batch.images)

    def test_it_is_that_of_the_middle_wherever_the_crop_is(self) -> None:
        augment = Augmentation(padding=0, size=4)
        loader = self.DATA.batches(4, seed=1, augment=augment)
        raw = np.concatenate([batch.images for batch in loader.raw(2)])
        found = np.concatenate([batch.images for batch in loader.epoch(2)])
        middle = self.DATA.mean_image[:, 2:6, 3:7]  # type: ignore[index]
        np.testing.assert_array_equal(found, raw - middle)
        draws = loader.draws(2)
        assert draws is not None
        assert len(np.unique(draws, axis=0)) > 4

    def test_noise_comes_after_it_and_damps(self) -> None:
        """(x - mean + c E (sigma n)) / (1 + c), for each image by itself."""
        augment = Augmentation(padding=0, size=4, noise=0.1, damped=True)
        loader = self.DATA.batches(4, seed=1, augment=augment)
        raw = np.concatenate([batch.images for batch in loader.raw(2)]).astype(np.float64)
        drawn = augment.draw(1, 2, 9, (8, 10)).noise
        assert drawn is not None
        moved = drawn @ axes(self.PIXELS)
        middle = self.DATA.mean_image[:, 2:6, 3:7]  # type: ignore[index]
        wanted = (raw - middle + moved[:, :, None, None]) / 1.1
        found = np.concatenate([batch.images for batch in loader.epoch(2)])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-5)
        tested = np.concatenate([b.images for b in self.DATA.centre_crop(4).batches(4).epoch(0)])
        np.testing.assert_array_equal(tested, self.PIXELS[:, :, 2:6, 3:7] - middle)

    def test_scalar_mean_damps_too(self) -> None:
        data = from_arrays(self.PIXELS, np.arange(9) % 3).centred(scalar=True)
        augment = Augmentation(padding=0, flip=False, noise=0.2, damped=True)
        drawn = augment.draw(0, 0, 9).noise
        assert drawn is not None
        moved = (drawn @ axes(self.PIXELS))[:, :, None, None]
        (batch,) = data.batches(9, augment=augment).epoch(0)
        wanted = (self.PIXELS - self.PIXELS.mean() + moved) / 1.2
        np.testing.assert_allclose(batch.images, wanted, rtol=0, atol=5e-5)
