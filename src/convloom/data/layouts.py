"""How data sets lie in a folder, and how that becomes a training and a test set.

Layouts: ``idx`` (four idx files, as MNIST has them), ``cifar10`` and ``cifar100`` (the binary
versions, unpacked or still in their archive), ``batches`` (cuda-convnet's batch files, CIFAR's
Python version too), and ``digits`` (the set that convloom ships).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convloom.data import batches, cifar, idx
from convloom.data.catalog import IDX_NAMES
from convloom.data.errors import DataError

SUFFIXES = ("", ".gz", ".xz")
Arrays = tuple[np.ndarray, np.ndarray]

#: The digits' values, 0 to 16, as pixels.
_DIGIT_PIXELS = np.rint(np.arange(17) * (255 / 16)).astype(np.uint8)
_DIGITS_TRAIN = 1437


@dataclass(frozen=True)
class Reading:
    """What a folder held.

    Attributes:
        train, test: (images (N, C, H, W) uint8, labels (N, label columns) int64).
        digests: {file: SHA-256 of its decompressed content}.
        files: training images of each batch file; empty where they are no such files.
        classes: names that the files say; empty where they say none.
    """

    train: Arrays
    test: Arrays
    digests: Mapping[str, str]
    files: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Names of the files, and how to read them.

    Attributes:
        files: names, when not compressed.
        read: from {file: path} to the arrays.
        archives: names of archives that may hold all files.
        folders: subfolders in which the files may lie as well.
    """

    files: tuple[str, ...]
    read: Callable[[Mapping[str, Path]], Reading]
    archives: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def find(self, folder: Path) -> dict[str, Path]:
        """{file: path} of the files that lie in a folder; not all of them need be there."""
        for place in (folder, *(folder / name for name in self.folders)):
            found = {name: path for name in self.files if (path := _first(place, name))}
            if found:
                return found
        archive = next((folder / a for a in self.archives if (folder / a).is_file()), None)
        return {} if archive is None else dict.fromkeys(self.files, archive)

    def missing(self, found: Mapping[str, Path]) -> tuple[str, ...]:
        """The files that ``find`` did not find."""
        return tuple(name for name in self.files if name not in found)


def _first(folder: Path, name: str) -> Path | None:
    # Some collections of MNIST write train-images.idx3-ubyte.
    spellings = dict.fromkeys((name, name.replace("-idx", ".idx")))
    paths = (folder / f"{spelling}{suffix}" for spelling in spellings for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def _read_idx(paths: Mapping[str, Path]) -> Reading:
    digests: dict[str, str] = {}
    arrays = {}
    for name in IDX_NAMES:
        arrays[name], digests[name] = idx.read_with_digest(paths[name])
        check = _check_images if "images" in name else _check_labels
        check(arrays[name], paths[name])
    train, test = (
        _pair(arrays[images], arrays[labels], paths[images], paths[labels])
        for images, labels in (IDX_NAMES[:2], IDX_NAMES[2:])
    )
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(
            f"the training images are {train[0].shape[1:]} (channels, height, width), the test "
            f"images {test[0].shape[1:]}; they are not of one set",
            paths[IDX_NAMES[2]],
        )
    return Reading(train, test, digests)


def _check_images(array: np.ndarray, path: Path) -> None:
    if array.ndim not in (3, 4) or array.dtype != np.uint8:
        hint = "; is it a labels file?" if array.ndim == 1 else ""
        raise DataError(
            "expected images, uint8 of rank 3 (N, H, W) or 4 (N, C, H, W); it holds "
            f"{array.dtype} of rank {array.ndim}, {array.shape}{hint}",
            path,
        )


def _check_labels(array: np.ndarray, path: Path) -> None:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        hint = "; is it an images file?" if array.ndim > 1 else ""
        raise DataError(
            f"expected labels, integers of rank 1 (N,); it holds {array.dtype} of rank "
            f"{array.ndim}, {array.shape}{hint}",
            path,
        )


def _pair(images: np.ndarray, labels: np.ndarray, path: Path, labels_path: Path) -> Arrays:
    if len(images) != len(labels):
        raise DataError(
            f"it has {len(images):,} images, but {labels_path} has {len(labels):,} labels; the "
            "files are not of one set",
            path,
        )
    if images.ndim == 3:
        images = images[:, None]
    return images, labels.astype(np.int64)[:, None]


def _read_digits(paths: Mapping[str, Path]) -> Reading:
    (images, images_digest), (labels, labels_digest) = (
        idx.read_with_digest(paths[name]) for name in _DIGITS.files
    )
    pixels = _DIGIT_PIXELS[images][:, None]
    columns = labels.astype(np.int64)[:, None]
    train, test = slice(None, _DIGITS_TRAIN), slice(_DIGITS_TRAIN, None)
    return Reading(
        (pixels[train], columns[train]),
        (pixels[test], columns[test]),
        dict(zip(_DIGITS.files, (images_digest, labels_digest), strict=True)),
    )


@dataclass(frozen=True)
class _Cifar:
    """Reads either binary version of CIFAR."""

    train: tuple[str, ...]
    test: str
    label_classes: tuple[int, ...]

    def __call__(self, paths: Mapping[str, Path]) -> Reading:
        if batches.META in paths:
            return _read_batches(paths)
        names = (*self.train, self.test)
        if len(set(paths.values())) < len(names):
            files = cifar.read_archive(paths[self.test], self.label_classes, names)
        else:
            files = {name: cifar.read(paths[name], self.label_classes) for name in names}
        digests = {name: records.digest for name, records in files.items()}
        sizes = tuple(len(files[name].labels) for name in self.train)
        return Reading(_joined(files, self.train), _joined(files, (self.test,)), digests, sizes)


class _BatchFiles(Layout):
    """Any number of cuda-convnet's batch files."""

    def find(self, folder: Path) -> dict[str, Path]:
        """{file: path} of the files in a folder."""
        places = (folder, *(folder / name for name in self.folders))
        return next((found for place in places if (found := batches.find(place))), {})


class _BinaryOrBatches(Layout):
    """The binary version; where there is nothing of it, the Python version."""

    def find(self, folder: Path) -> dict[str, Path]:
        """{file: path} of the files of either version."""
        return super().find(folder) or _BATCHES.find(folder)

    def missing(self, found: Mapping[str, Path]) -> tuple[str, ...]:
        """The files of that version which ``find`` did not find."""
        return () if batches.META in found else super().missing(found)


def _read_batches(paths: Mapping[str, Path]) -> Reading:
    train, test = batches.parts(paths, paths[batches.META].parent)
    files: dict[str, batches.BatchFile | cifar.Records] = {}
    for name in (*train, test):
        files[name] = batches.read(paths[name])
        if (found := files[name].images.shape[1:]) != (wanted := files[train[0]].images.shape[1:]):
            raise DataError(
                f"its images are {found} (channels, height, width), those of {train[0]} {wanted}",
                paths[name],
            )
    digests = {name: file.digest for name, file in files.items()}
    sizes = tuple(len(files[name].labels) for name in train)
    classes = batches.read_classes(paths[batches.META])
    training, testing = (
        (images, labels.reshape(-1, 1))
        for images, labels in (_joined(files, tuple(train)), _joined(files, (test,)))
    )
    return Reading(training, testing, digests, sizes, classes)


def _joined(
    files: dict[str, cifar.Records] | dict[str, batches.BatchFile | cifar.Records],
    names: tuple[str, ...],
) -> Arrays:
    """Some files' images and labels as one; each file's memory is freed as soon as it is copied."""
    labels = np.concatenate([files[name].labels for name in names]).astype(np.int64)
    if len(names) == 1:
        return files.pop(names[0]).images, labels
    images = np.empty((len(labels), *files[names[0]].images.shape[1:]), np.uint8)
    end = 0
    for name in names:
        part = files.pop(name).images
        start, end = end, end + len(part)
        images[start:end] = part
    return images, labels


_CIFAR10_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_BATCHES = _BatchFiles((batches.META,), _read_batches, folders=("cifar-10-batches-py",))
_DIGITS = Layout(("digits-images-idx3-ubyte", "digits-labels-idx1-ubyte"), _read_digits)

LAYOUTS = {
    "batches": _BATCHES,  # before cifar10, which may be such files too, but of CIFAR's classes
    "idx": Layout(IDX_NAMES, _read_idx, folders=("raw",)),
    "cifar10": _BinaryOrBatches(
        (*_CIFAR10_TRAIN, "test_batch.bin"),
        _Cifar(_CIFAR10_TRAIN, "test_batch.bin", (10,)),
        archives=("cifar-10-binary.tar.gz",),
        folders=("cifar-10-batches-bin",),
    ),
    "cifar100": Layout(
        ("train.bin", "test.bin"),
        _Cifar(("train.bin",), "test.bin", (20, 100)),
        archives=("cifar-100-binary.tar.gz",),
        folders=("cifar-100-binary",),
    ),
    "digits": _DIGITS,
}
