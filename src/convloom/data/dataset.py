"""Images and labels in memory: the data set type that every reader returns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from convloom.data.augment import Augmentation, centre_crop
from convloom.data.errors import DataError
from convloom.data.loader import Batches
from convloom.normalise import PIXELS, middle_of, normalise

#: Axis lengths that images have as channels: grayscale, RGB, RGB with alpha.
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Labelled images in memory; the arrays are read-only.

    Attributes:
        name: for messages and saved networks.
        images: (N, C, H, W), uint8 pixels, or float32 that is taken as it is.
        labels: (N,) int64, each in [0, len(classes)).
        classes: name of each label.
        mean, std: per channel, of pixels / 255, by which a network's input is normalised. Empty
            for float32 images.
        split: ``train``, ``test`` or whatever the owner calls it.
        mean_image: a mean of its own for every pixel, float32 (C, H, W) from 0 to 255, that takes
            the place of ``mean``; see ``normalise.py``.
        files: how many images came in each batch file, in order; empty where they came as one.

    Raises:
        DataError: shapes, types, lengths or labels that do not fit together.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    split: str = ""
    mean_image: np.ndarray | None = None
    files: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_images(self.images, self.mean, self.std)
        _check_labels(self.labels, len(self.images), len(self.classes))
        _check_mean_image(self.mean_image, self.images)
        if self.files and (min(self.files) < 1 or sum(self.files) != len(self.images)):
            raise DataError(
                f"batch files of {sum(self.files):,} images in all, but there are "
                f"{len(self.images):,}; each needs one or more"
            )
        for field in ("images", "labels", "mean_image"):
            if getattr(self, field) is None:
                continue
            view = getattr(self, field).view()
            view.flags.writeable = False
            object.__setattr__(self, field, view)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        c, h, w = self.shape
        split = f" {self.split}" if self.split else ""
        return (
            f"<ArrayDataset {self.name}{split}: {len(self):,} images {c}×{h}×{w} "
            f"{self.images.dtype}, {len(self.classes)} classes>"
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        _, c, h, w = self.images.shape
        return c, h, w

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of images of each class."""
        return tuple(int(n) for n in np.bincount(self.labels, minlength=len(self.classes)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of shapes, types, images and labels: equal data, equal digest."""
        labels = self.labels.astype("<i8")
        images = np.ascontiguousarray(self.images)
        header = json.dumps([images.shape, images.dtype.newbyteorder("<").str, len(labels)])
        result = hashlib.sha256(header.encode())
        result.update(images.astype(images.dtype.newbyteorder("<"), copy=False).data)
        result.update(labels.data)
        return result.hexdigest()

    def subset(self, indices: npt.ArrayLike) -> ArrayDataset:
        """The images at ``indices``, in that order. Raises DataError for an index out of range."""
        chosen = np.asarray(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise DataError(
                f"a subset needs a row of integers, it got {chosen.dtype} {chosen.shape}"
            )
        outside = np.flatnonzero((chosen < 0) | (chosen >= len(self)))
        if outside.size:
            raise DataError(
                f"{self.name} has images 0 to {len(self) - 1}, index {int(chosen[outside[0]])} "
                "is not among them"
            )
        return replace(self, images=self.images[chosen], labels=self.labels[chosen], files=())

    def take(self, count: int) -> ArrayDataset:
        """The first ``count`` images (all of them if there are fewer); shares memory."""
        if count < 0:
            raise DataError(f"cannot take {count} images; give 0 or more")
        return replace(self, images=self.images[:count], labels=self.labels[:count], files=())

    def centre_crop(self, size: int) -> ArrayDataset:
        """The middle of each image, size×size; shares memory. Raises DataError if it has none."""
        mean = self.mean_image
        middle = None if mean is None else middle_of(mean, (size, size))
        return replace(self, images=centre_crop(self.images, size), mean_image=middle)

    def centred(self, like: ArrayDataset | None = None, *, scalar: bool = False) -> ArrayDataset:
        """The set with pixels as they are, 0 to 255, but for a mean that is subtracted.

        So the networks of cuda-convnet's files are trained. What is subtracted from a part of an
        image is the middle of the mean image, wherever the part lies and whether it is mirrored.

        Args:
            like: the set whose mean image it is, for a test set the training set; default this.
            scalar: subtract the mean of the mean image, one number, instead.

        Raises:
            DataError: images that are no uint8 pixels, or of another shape than ``like``'s.
        """
        source = self if like is None else like
        if self.images.dtype != np.uint8 or source.shape != self.shape:
            raise DataError(
                f"a mean image of {source.name}, {source.shape}, cannot be subtracted from "
                f"{self.images.dtype} images of {self.name}, {self.shape}; uint8 pixels of one "
                "shape are needed"
            )
        known = source.mean_image
        image = mean_image(source.images) if known is None else known
        value = float(image.mean(dtype=np.float64)) / 255
        channels = image.shape[0]
        means = np.full(channels, value) if scalar else image.mean((1, 2), np.float64) / 255
        return replace(
            self,
            mean=tuple(means.tolist()),
            std=(PIXELS,) * channels,
            mean_image=None if scalar else image,
        )

    def normalise(self, images: np.ndarray) -> np.ndarray:
        """uint8 images (n, C, H, W) as a network trained on this set wants them, float32."""
        return normalise(images, self.mean, self.std, self.mean_image)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool | str = False,
        augment: Augmentation | None = None,
        drop_last: bool = False,
        prefetch: int = 0,
        files: Sequence[int] = (),
    ) -> Batches:
        """Batches of this set; see ``Batches``."""
        return Batches(
            self,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            augment=augment,
            drop_last=drop_last,
            prefetch=prefetch,
            files=files,
        )


def from_arrays(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = "arrays",
    split: str = "",
    layout: str | None = None,
    mean_image: npt.ArrayLike | None = None,
) -> ArrayDataset:
    """A data set of your own arrays; uint8 and float32 images are not copied.

    Args:
        images: uint8 pixels or floats that are normalised already: (N, C, H, W); (N, H, W) for
            one channel; (H, W) for one image.
        labels: (N,) integers.
        classes: names; default "0", "1" … up to the largest label. Give the training set's to
            its test set.
        mean, std: per channel, of pixels / 255; default those of ``images``. Give the training
            set's to its test set.
        layout: "NCHW" or "NHWC" says how four axes are meant; without it an array that looks
            like NHWC is refused.
        mean_image: (C, H, W), 0 to 255, in place of ``mean``; give the training set's to its test
            set. See ``ArrayDataset.centred``.

    Raises:
        DataError: what does not fit, and how to change it.
    """
    pixels = _as_nchw(np.asarray(images), layout, np.size(labels))
    numbers = _as_labels(np.asarray(labels))
    if classes is None:
        classes = [str(k) for k in range(int(numbers.max(initial=-1)) + 1)]
    if pixels.dtype == np.uint8:
        found_mean, found_std = statistics(pixels) if mean is None or std is None else ((), ())
        mean = found_mean if mean is None else mean
        std = found_std if std is None else std
    return ArrayDataset(
        name=name,
        images=pixels,
        labels=numbers,
        classes=tuple(classes),
        mean=tuple(float(m) for m in mean or ()),
        std=tuple(float(s) for s in std or ()),
        split=split,
        mean_image=None if mean_image is None else np.asarray(mean_image, np.float32),
    )


def as_dataset(data: object, name: str = "data") -> ArrayDataset:
    """What a person may pass as data: an ArrayDataset, ``(images, labels)``, or such attributes.

    An object with ``images`` and ``labels`` may also have classes, mean, std, name and split.

    Raises:
        DataError: anything else.
    """
    if isinstance(data, ArrayDataset):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return from_arrays(data[0], data[1], name=name)
    if hasattr(data, "images") and hasattr(data, "labels"):
        return from_arrays(
            data.images,
            data.labels,
            classes=getattr(data, "classes", None),
            mean=getattr(data, "mean", None),
            std=getattr(data, "std", None),
            name=getattr(data, "name", name),
            split=getattr(data, "split", ""),
            mean_image=getattr(data, "mean_image", None),
        )
    raise DataError(
        f"a data set is what cl.data.load returns, a pair (images, labels) of arrays, or an object "
        f"with those attributes; {type(data).__name__} is none of these"
    )


def mean_image(images: np.ndarray) -> np.ndarray:
    """The mean of uint8 images (N, C, H, W), float32 (C, H, W): exact sums, rounded once or twice.

    Raises:
        DataError: images of another type, or none.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
        raise DataError(f"a mean image needs uint8 images, these are {images.dtype} {images.shape}")
    sums = np.zeros(images.shape[1:], np.int64)
    for part in _parts(images):
        sums += part.sum(axis=0, dtype=np.uint32)  # 2048 pixels of 255 fit
    return (sums / len(images)).astype(np.float32)


def statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images (N, C, H, W), over 255.

    Computed from exact counts. A channel without variation gets a deviation of 1.
    """
    values = np.arange(256) / 255.0
    mean, std = [], []
    for channel in range(images.shape[1]):
        counts = sum(
            (np.bincount(part.ravel(), minlength=256) for part in _parts(images[:, channel])),
            start=np.zeros(256, np.int64),
        )
        share = counts / max(int(counts.sum()), 1)
        average = float(share @ values)
        mean.append(average)
        std.append(float(np.sqrt(share @ (values - average) ** 2)) or 1.0)
    return tuple(mean), tuple(std)


def _parts(images: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(images), 2048):  # bincount needs 8 bytes a pixel
        yield images[start : start + 2048]


def _as_nchw(images: np.ndarray, layout: str | None, count: int) -> np.ndarray:
    if layout not in (None, "NCHW", "NHWC"):
        raise DataError(f"the layout is 'NCHW' or 'NHWC', not {layout!r}")
    if images.ndim == 2 and count != 1:
        raise DataError(
            f"images have shape {images.shape} with {count} labels: rows of pixels must be shaped "
            "as images first: images.reshape(N, C, H, W)"
        )
    if images.ndim == 2:
        images = images[None, None]
    elif images.ndim == 3:
        images = images[:, None]
    elif images.ndim != 4:
        raise DataError(f"images have shape {images.shape}; expected (N, C, H, W) or (N, H, W)")
    elif layout == "NHWC":
        images = images.transpose(0, 3, 1, 2)
    elif layout is None and _looks_nhwc(images.shape[1:]):
        raise DataError(
            f"images have shape {images.shape}, which looks like (N, H, W, C); expected "
            "(N, C, H, W): pass layout='NHWC' to have it transposed, layout='NCHW' if it is right"
        )
    return _as_pixels(images)


def _looks_nhwc(shape: tuple[int, ...]) -> bool:
    """A last axis like channels and a first one unlike them; (C, 1, 1) are features, no image."""
    first, *rest = shape
    return rest[1] in _CHANNELS and first not in _CHANNELS and rest != [1, 1]


def _as_pixels(images: np.ndarray) -> np.ndarray:
    if images.dtype.kind == "f":
        images = images.astype(np.float32, copy=False)
    elif images.dtype != np.uint8:
        raise DataError(
            f"images are {images.dtype}; pass pixels from 0 to 255 as uint8 "
            "(images.astype(np.uint8)), or normalised values as float32"
        )
    return np.ascontiguousarray(images)


def _as_labels(labels: np.ndarray) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(
            f"labels have shape {labels.shape}; expected one integer an image: for one-hot rows "
            "pass labels.argmax(1); rows with several classes an image can be learnt from step by "
            "step, with cl.compile"
        )
    if labels.size and labels.dtype.kind not in "iu":
        raise DataError(
            f"labels are {labels.dtype}; expected integers: pass labels.astype(np.int64)"
        )
    return labels.reshape(-1).astype(np.int64)


def _check_images(images: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> None:
    if images.ndim != 4:
        raise DataError(f"images have shape {images.shape}; expected (N, C, H, W)")
    if images.dtype not in (np.uint8, np.float32):
        raise DataError(f"images are {images.dtype}; expected uint8 or float32")
    channels = images.shape[1] if images.dtype == np.uint8 else 0
    for what, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise DataError(
                f"{what} has {len(values)} values, {images.dtype} images of {images.shape[1]} "
                f"channels need {channels}"
            )
    if not all(np.isfinite(mean)) or not all(np.isfinite(s) and s > 0 for s in std):
        raise DataError(f"mean {tuple(mean)} and std {tuple(std)} must be finite, std above 0")


def _check_mean_image(image: np.ndarray | None, images: np.ndarray) -> None:
    if image is None:
        return
    wanted = images.shape[1:]
    if images.dtype != np.uint8:
        raise DataError(f"{images.dtype} images are taken as given; leave the mean image out")
    if image.dtype != np.float32 or image.shape != wanted or not np.isfinite(image).all():
        raise DataError(
            f"the mean image is {image.dtype} {image.shape}; expected finite float32 {wanted}"
        )


def _check_labels(labels: np.ndarray, images: int, classes: int) -> None:
    if labels.shape != (images,):
        raise DataError(
            f"{images:,} images, but {labels.size:,} labels (shape {labels.shape}); each image "
            "needs one"
        )
    if labels.dtype != np.int64:
        raise DataError(f"labels are {labels.dtype}; expected int64")
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        first = int(outside[0])
        raise DataError(
            f"label {int(labels[first])} of image {first} is outside 0 to {classes - 1} "
            f"({classes} classes)"
        )
