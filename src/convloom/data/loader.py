"""Batches of a data set that lies in memory: shuffled, normalised, augmented, resumable.

An epoch is cut into batches of one size, but for a short last one; or, where images came in batch
files, each file is cut by itself, as cuda-convnet did.

Which samples a batch holds, and what happens to them, depends on (seed, epoch, position) alone,
so an epoch can be taken up at any batch and gives what was left of it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from convloom import normalise
from convloom.data import colour
from convloom.data.augment import Augmentation, Draws
from convloom.data.errors import DataError
from convloom.random import permutation

_STREAM = "shuffle"
_DEALT = "batch files"
#: Values of ``shuffle`` beside True and False: one random order for all epochs.
ONCE = "once"
_Item = TypeVar("_Item")


class Dataset(Protocol):
    """What ``Batches`` needs of a data set; ArrayDataset is one.

    ``images`` is (N, C, H, W), uint8 or float32, ``labels`` (N,) int64; ``mean`` and ``std`` are
    per channel and of pixels / 255, empty for float32 images. A ``mean_image``, as ArrayDataset
    has it, need not be there.
    """

    @property
    def images(self) -> np.ndarray: ...

    @property
    def labels(self) -> np.ndarray: ...

    @property
    def mean(self) -> Sequence[float]: ...

    @property
    def std(self) -> Sequence[float]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples, ready for a network.

    Attributes:
        images: (n, C, H, W) float32.
        labels: (n,) int64.
        indices: (n,) int64, which samples of the data set these are.
    """

    images: np.ndarray
    labels: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)


class Batches:
    """The batches of a data set, epoch by epoch. Each batch is new memory.

    Args:
        dataset: images and labels.
        batch_size: samples a batch; the last one of an epoch, or of a file, may have fewer.
        seed: of the order and of the augmentation.
        shuffle: a new order every epoch; False keeps the data set's (evaluation); ``"once"`` puts
            the samples into one random order, as whoever makes batch files of sorted images does.
        files: samples of each batch file, consecutive in an epoch's order; empty for one of all.
        augment: crops, flips and noise, or None.
        drop_last: leave a short last batch out; training only.
        prefetch: batches that a thread makes ahead; 0 makes each when asked for.

    Raises:
        DataError: a value out of range, ``drop_last`` without ``shuffle`` (an evaluation must see
            every sample) or with several files, an augmentation that the images are too small for,
            or files of another number of samples.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool | str = True,
        augment: Augmentation | None = None,
        drop_last: bool = False,
        prefetch: int = 0,
        files: Sequence[int] = (),
    ) -> None:
        if batch_size < 1:
            raise DataError(f"the batch size must be at least 1, it is {batch_size}")
        if prefetch < 0:
            raise DataError(f"the number of batches made ahead must be 0 or more: {prefetch}")
        if shuffle not in (True, False, ONCE):
            raise DataError(f"shuffle is True, False or {ONCE!r}, not {shuffle!r}")
        if drop_last and not shuffle:
            raise DataError("drop_last would leave the same samples out of every evaluation")
        if drop_last and len(files) > 1:
            raise DataError("drop_last would leave out the end of every batch file; leave it out")
        if not 0 <= seed < 2**64:
            raise DataError(f"the seed must be in [0, 2^64), it is {seed}")
        if files and (min(files) < 1 or sum(files) != len(dataset)):
            raise DataError(
                f"the batch files hold {sum(files):,} samples, the data set {len(dataset):,}; they "
                "must be as many, and each file must hold one or more"
            )
        if augment is not None:
            augment.check(*dataset.images.shape[2:])
        self._axes = colour.axes(dataset.images) if augment and augment.noise else None
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.augment = augment
        self.drop_last = drop_last
        self.prefetch = prefetch
        self.files = tuple(int(file) for file in files) or (len(dataset),)
        self._bounds = list(self._cut())
        self._pixels = dataset.images.dtype == np.uint8
        mean_image = getattr(dataset, "mean_image", None)
        self._centred = mean_image is not None
        self._scale, self._shift = normalise.coefficients(
            dataset.mean, dataset.std, mean_image, self.shape[1:]
        )
        if augment is not None and augment.damping != 1 and self._pixels:
            damping = np.float64(augment.damping)
            self._scale = (self._scale / damping).astype(np.float32)
            self._shift = (self._shift / damping).astype(np.float32)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._bounds)

    @property
    def samples(self) -> int:
        """Samples in an epoch: all of them, unless ``drop_last`` leaves some out."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Samples of each batch of an epoch, in order."""
        return [stop - start for start, stop in self._bounds]

    @property
    def images(self) -> np.ndarray:
        """The data set's images, (N, C, H, W) uint8, or float32 that is taken as it is."""
        return self.dataset.images

    @property
    def labels(self) -> np.ndarray:
        """The data set's labels, (N,) int64."""
        return self.dataset.labels

    @property
    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale and shift of ``normalise.apply``, the shift (C, 1, 1), or (C, H, W) of a batch's
        images where a mean image is subtracted; empty for float32 images."""
        return self._scale, self._shift

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a batch's images."""
        _, channels, height, width = self.dataset.images.shape
        own = channels, height, width
        return own if self.augment is None else self.augment.shape(own)

    @property
    def crops(self) -> tuple[int, bool, int | None, bool] | None:
        """How images are augmented: pixels of padding, whether it mirrors, the side of the crop,
        and whether colours are moved; None: not at all."""
        if self.augment is None:
            return None
        return self.augment.padding, self.augment.reflect, self.augment.size, self._axes is not None

    def shifts(self, epoch: int) -> np.ndarray | None:
        """The shift of each sample's normalisation, float32 (N, C); None without colour noise.

        Where a mean image is subtracted it comes after that, in a sum of its own.
        """
        if self._axes is None:
            return None
        every = np.arange(len(self.dataset))
        return self._shifts(every, self._drawn(epoch))[:, :, 0, 0]

    def draws(self, epoch: int) -> np.ndarray | None:
        """Where each sample's crop begins and whether it is flipped, (N, 3), uint8 or uint16; see
        ``Draws``.

        None where nothing is augmented.
        """
        drawn = self._drawn(epoch)
        if drawn is None:
            return None
        return np.stack([drawn.row, drawn.column, drawn.flip.astype(drawn.row.dtype)], axis=1)

    def order(self, epoch: int) -> np.ndarray:
        """The samples' indices in an epoch's order, int64 (N,)."""
        if self.shuffle == ONCE:
            return permutation(self.seed, _DEALT, 0, len(self.dataset))
        if self.shuffle:
            return permutation(self.seed, _STREAM, epoch, len(self.dataset))
        return np.arange(len(self.dataset))

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from ``start_batch`` on.

        Raises:
            DataError: an epoch or a batch that does not exist.
        """
        return self._ahead(epoch, start_batch, normal=True)

    def raw(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The same batches, cropped and flipped but not normalised: their images are the data
        set's type.

        Raises:
            DataError: an epoch or a batch that does not exist.
        """
        return self._ahead(epoch, start_batch, normal=False)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def _ahead(self, epoch: int, start_batch: int, *, normal: bool) -> Iterator[Batch]:
        if epoch < 0 or not 0 <= start_batch <= len(self):
            raise DataError(
                f"there is no batch {start_batch} in epoch {epoch}; epochs count from 0 and have "
                f"{len(self)} batches"
            )
        batches = self._batches(epoch, start_batch, normal)
        return prefetched(batches, self.prefetch) if self.prefetch else batches

    def _batches(self, epoch: int, start_batch: int, normal: bool) -> Iterator[Batch]:
        order = self.order(epoch)
        draws = self._drawn(epoch)
        for start, stop in self._bounds[start_batch:]:
            yield self._batch(order[start:stop], draws, normal)

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Where the batches of an epoch begin and end in its order."""
        first = 0
        for file in self.files:
            for start in range(first, first + file, self.batch_size):
                stop = min(start + self.batch_size, first + file)
                if stop - start == self.batch_size or not self.drop_last:
                    yield start, stop
            first += file

    def _drawn(self, epoch: int) -> Draws | None:
        if self.augment is None:
            return None
        height, width = self.dataset.images.shape[2:]
        sharing = self._sharing(epoch) if self.augment.shared > 1 else None
        return self.augment.draw(self.seed, epoch, len(self.dataset), (height, width), sharing)

    def _sharing(self, epoch: int) -> np.ndarray:
        """Numbers of draws, equal for the samples of a file that share one, int64 (N,)."""
        assert self.augment is not None
        shared, taken = self.augment.shared, 0
        places = []
        for file in self.files:
            places.append(taken + np.arange(file) // shared)
            taken += -(-file // shared)
        numbers = np.empty(len(self.dataset), np.int64)
        numbers[self.order(epoch)] = np.concatenate(places)
        return numbers

    def _batch(self, indices: np.ndarray, draws: Draws | None, normal: bool) -> Batch:
        images = self.dataset.images.take(indices, axis=0)
        if self.augment is not None and draws is not None:
            images = self.augment.apply(images, draws, indices)
        if self._pixels and normal:
            shifts = self._shifts(indices, draws)
            images = normalise.apply(images, self._scale, self._shift if self._centred else shifts)
            if self._centred and self._axes is not None:
                images += shifts
        return Batch(images, self.dataset.labels.take(indices), indices.copy())

    def _shifts(self, indices: np.ndarray, draws: Draws | None) -> np.ndarray:
        """The shift of the normalisation, (C, 1, 1); (n, C, 1, 1) where each sample's colours are
        moved: one multiplication and one addition a pixel, as without the noise. With a mean image
        the movement alone."""
        if self._axes is None or draws is None or draws.noise is None:
            return self._shift
        noise = draws.noise[indices]
        # Term by term: the bits of a matrix product may depend on the size of the batch.
        moved = sum(noise[:, i, None] * self._axes[i] for i in range(len(self._axes)))
        shifts = moved[:, :, None, None] * self._scale
        if not self._centred:
            shifts = shifts + self._shift
        result: np.ndarray = shifts.astype(np.float32)
        return result


@dataclass(frozen=True)
class _End:
    """The last thing that a loader thread hands over."""

    error: BaseException | None


def prefetched(items: Iterator[_Item], ahead: int) -> Iterator[_Item]:
    """The same items, made up to ``ahead`` early by a thread.

    An exception of ``items`` is raised here, after the items before it. When this iterator is
    closed or dropped early, the thread ends after the item that it is making.
    """
    ready: queue.SimpleQueue[_Item | _End] = queue.SimpleQueue()
    room = threading.Semaphore(ahead)
    stop = threading.Event()

    def make() -> None:
        error = None
        try:
            while room.acquire() and not stop.is_set():
                ready.put(next(items))
        except StopIteration:
            pass
        except BaseException as problem:
            error = problem
        ready.put(_End(error))

    thread = threading.Thread(target=make, name="convloom-loader", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        room.release()
        thread.join()
