"""Folders of image files: a class is a folder, its name the class's.

    DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg       (also valid, validation or test)
    DIR/CLASS/*.jpg                                     training images alone

The classes are the names of the training folders that hold images, in sorted order, and the other
images are labelled by these names, so that no label shifts where one part lacks a class. What is
hidden, empty or no image by its name is skipped, with a warning that says so.

Each image becomes a square: decoded as ``images.decode_square`` says, its shorter side resized,
the middle of the longer one kept (Krizhevsky, Sutskever and Hinton, NIPS 2012, section 2).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convloom.data.dataset import ArrayDataset, statistics
from convloom.data.errors import DataError
from convloom.data.images import decode_square, quietly

_log = logging.getLogger("convloom.data")

#: Side of the squares unless another is asked for, as in the paper.
RESIZE = 256
#: What to do with a file that cannot be decoded.
ERROR, SKIP = ON_BAD_IMAGE = ("error", "skip")
#: Names that image files end in, in any case.
SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
)  # fmt: skip
_TRAIN = ("train", "training")
_TEST = ("val", "valid", "validation", "test")
#: Files that a message names before it only counts them.
_NAMED = 3


@dataclass(frozen=True)
class Listing:
    """The image files of one part.

    Attributes:
        folder: of the part.
        files: {class: its image files, sorted}; only classes that have some.
    """

    folder: Path
    files: dict[str, tuple[Path, ...]]

    def __len__(self) -> int:
        return sum(map(len, self.files.values()))


def is_image_folder(folder: Path) -> bool:
    """Whether a folder has image files in folders of their own, or training images beneath."""
    if _part(folder, _TRAIN) is not None:
        return True
    return any(
        _is_image(file)
        for place in _folders(folder)
        for file in _beneath(place, {os.path.realpath(place)})
    )


def load_image_folder(
    folder: Path, *, resize: int = RESIZE, on_bad_image: str = ERROR
) -> tuple[ArrayDataset, ArrayDataset]:
    """The training and the test set in a folder, each image 3×resize×resize, in memory.

    Where there is one part only, it is both.

    Args:
        resize: side of the squares, in pixels.
        on_bad_image: ``error`` refuses the folder, naming files that cannot be decoded; ``skip``
            leaves them out, with a warning that names them.

    Raises:
        DataError: no images, a class that the training part lacks, files that cannot be decoded,
            or more than fits into memory.
    """
    if on_bad_image not in ON_BAD_IMAGE:
        raise DataError(f"on_bad_image is 'error' or 'skip', not {on_bad_image!r}")
    if resize < 1:
        raise DataError(f"images are resized to 1 pixel or more, not to {resize}")
    train, test = _listings(folder)
    classes = tuple(train.files)
    _check_classes(test, classes)
    _check_memory(len(train) + (len(test) if test is not train else 0), resize, folder)
    name = folder.resolve().name
    images, labels = _decoded(train, classes, resize, on_bad_image)
    mean, std = statistics(images)
    trained = ArrayDataset(name, images, labels, classes, mean, std, "train")
    if test is train:
        _log.warning(
            "%s has training images alone (no folder %s): figures of the test set are of these "
            "same images",
            folder,
            " or ".join(_TEST),
        )
        return trained, ArrayDataset(name, images, labels, classes, mean, std, "test")
    images, labels = _decoded(test, classes, resize, on_bad_image)
    return trained, ArrayDataset(name, images, labels, classes, mean, std, "test")


def _listings(folder: Path) -> tuple[Listing, Listing]:
    """The training and the test part; the same where there is one only."""
    inside = _part(folder, _TRAIN)
    train = _listed(inside or folder)
    if not train.files:
        raise DataError(
            "there are no image files in folders of their own; expected train/CLASS/*.jpg and "
            f"val/CLASS/*.jpg, or CLASS/*.jpg (files ending in {', '.join(SUFFIXES)})",
            train.folder,
        )
    other = _part(folder, _TEST) if inside else None
    if other is None:
        return train, train
    test = _listed(other)
    if not test.files:
        raise DataError(
            "there are no image files in folders named like the training classes; move each into "
            "the folder of its class",
            other,
        )
    return train, test


def _part(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _listed(folder: Path) -> Listing:
    """The image files beneath each folder in ``folder``; says what it leaves out."""
    skipped = [place for place in _sorted(folder) if place.is_dir() and _hidden(place)]
    foreign = [file for file in _sorted(folder) if file.is_file() and not _hidden(file)]
    files: dict[str, tuple[Path, ...]] = {}
    empty = []
    for place in _folders(folder):
        found: list[Path] = []
        for file in _beneath(place, {os.path.realpath(place)}):
            (found if _is_image(file) else foreign).append(file)
        if found:
            files[place.name] = tuple(found)
        else:
            empty.append(place)
    for what, left in (
        ("hidden folders are skipped", skipped),
        ("folders without image files are skipped, they are no classes", empty),
        ("files that are no images of a class are skipped", foreign),
    ):
        if left:
            _log.warning("%s: %s: %s", folder, what, _few(left, folder))
    return Listing(folder, files)


def _folders(folder: Path) -> list[Path]:
    return [place for place in _sorted(folder) if place.is_dir() and not _hidden(place)]


def _beneath(folder: Path, seen: set[str]) -> Iterator[Path]:
    """Files in a folder and in those in it, none twice where links lead in circles."""
    for entry in _sorted(folder):
        if _hidden(entry):
            continue
        if not entry.is_dir():
            yield entry
        elif (real := os.path.realpath(entry)) not in seen:
            seen.add(real)
            yield from _beneath(entry, seen)


def _sorted(folder: Path) -> list[Path]:
    try:
        # By code points: the same order on every system and in every locale.
        return sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", folder) from error


def _hidden(path: Path) -> bool:
    return path.name.startswith((".", "__"))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not _hidden(path) and path.is_file()


def _check_classes(test: Listing, classes: tuple[str, ...]) -> None:
    known = set(classes)
    strange = [name for name in test.files if name not in known]
    if strange:
        raise DataError(
            f"it has images of {len(strange)} classes that the training images lack "
            f"({', '.join(strange[:_NAMED])}{' …' if len(strange) > _NAMED else ''}); name its "
            "folders as those of the training images",
            test.folder,
        )


def _check_memory(count: int, side: int, folder: Path) -> None:
    """Refuses what would not fit, before an hour has been spent on decoding."""
    need, free = 3 * side * side * count, _free_memory()
    if free is not None and need > free:
        raise DataError(
            f"its {count:,} images take {need / 1e9:.1f} GB as {side}×{side} pixels, and "
            f"{free / 1e9:.1f} GB of memory are free; take fewer, or a smaller size (--resize)",
            folder,
        )


def _free_memory() -> int | None:
    """Bytes that can still be taken; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("MemAvailable:")]
    return int(found[0].split()[1]) * 1024 if found else None


def _decoded(
    listing: Listing, classes: tuple[str, ...], side: int, on_bad_image: str
) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, side, side) uint8 and labels (N,) int64, class by class."""
    number = {name: i for i, name in enumerate(classes)}
    work = [(path, number[name]) for name, paths in listing.files.items() for path in paths]
    images = np.empty((len(work), 3, side, side), np.uint8)

    def decode(index: int) -> DataError | None:
        try:
            images[index] = decode_square(work[index][0], side).pixels
        except DataError as error:
            return error
        return None

    with quietly(), ThreadPoolExecutor(_threads(), "convloom-decode") as threads:
        failures = list(threads.map(decode, range(len(work)), chunksize=16))
    bad = [failure for failure in failures if failure is not None]
    if bad:
        _refuse_or_report(bad, listing, on_bad_image)
    good = np.array([failure is None for failure in failures], bool)
    labels = np.array([label for _, label in work], np.int64)
    return (images[good], labels[good]) if bad else (images, labels)


def _threads() -> int:
    return max(1, min(len(os.sched_getaffinity(0)), 16))


def _refuse_or_report(bad: list[DataError], listing: Listing, on_bad_image: str) -> None:
    named = "; ".join(str(error) for error in bad[:_NAMED])
    more = f"; and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
    what = f"{len(bad):,} of {len(listing):,} image files"
    if on_bad_image == ERROR or len(bad) == len(listing):
        raise DataError(
            f"{what} cannot be used: {named}{more}. Mend or remove them, or have them left out "
            "(--on-bad-image skip)",
            listing.folder,
        )
    _log.warning("%s: %s are skipped: %s%s", listing.folder, what, named, more)


def _few(paths: Sequence[Path], folder: Path) -> str:
    names = ", ".join(str(path.relative_to(folder)) for path in paths[:_NAMED])
    return names + (f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else "")
