"""Data sets by name or folder: found or fetched, checked, and read."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convloom.data import catalog, debian, fetch, folders, layouts, locate
from convloom.data.catalog import KnownSet
from convloom.data.dataset import ArrayDataset, statistics
from convloom.data.errors import AccessError, DataError, WrongContentError
from convloom.data.fetch import FetchError, Progress
from convloom.data.layouts import Arrays, Layout, Reading
from convloom.data.locate import Found

_log = logging.getLogger("convloom.data")


@dataclass(frozen=True)
class FileInfo:
    """A file of a set on this machine; ``official`` is None where no digest is published."""

    name: str
    path: str
    size: int
    sha256: str
    official: bool | None


@dataclass(frozen=True)
class SetInfo:
    """A set on this machine, read and checked.

    Attributes:
        name, title, terms, homepage: of the set.
        place: what led there (``--data-dir``, ``the cache`` …).
        folder: where the files lie.
        files: each file.
        shape: (C, H, W).
        classes: names.
        mean, std: by which inputs are normalised.
        sizes: {split: number of images}.
        counts: {split: images of each class}.
        digests: {split: ArrayDataset.digest}.
    """

    name: str
    title: str
    terms: str
    homepage: str
    place: str
    folder: str
    files: tuple[FileInfo, ...]
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sizes: Mapping[str, int]
    counts: Mapping[str, tuple[int, ...]]
    digests: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class SetEntry:
    """A set that convloom knows by name.

    Attributes:
        name, title, terms: of the set.
        shape: (C, H, W).
        classes: how many.
        sizes: images for training and testing.
        transfer: bytes to fetch, about; 0 if it is shipped.
        place, folder: where its files lie on this machine; empty if it would be fetched.
        problem: why what lies there cannot be used, else empty.
    """

    name: str
    title: str
    terms: str
    shape: tuple[int, int, int]
    classes: int
    sizes: tuple[int, int]
    transfer: int
    place: str = ""
    folder: str = ""
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Loaded:
    train: ArrayDataset
    test: ArrayDataset
    found: Found
    digests: Mapping[str, str]


def load(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    coarse: bool = False,
    resize: int | None = None,
    on_bad_image: str = folders.ERROR,
    progress: Progress | None = None,
) -> tuple[ArrayDataset, ArrayDataset]:
    """The training and the test set of that name, found on this machine or fetched.

    Args:
        name: mnist, fashion-mnist, cifar10, cifar100, digits, or a folder with four idx files,
            CIFAR's binary files, or cuda-convnet's batch files (data/batches.py). Such a folder
            may have a classes.txt, one name a line. Or a folder of image files, train/CLASS/*.jpg
            and val/CLASS/*.jpg; see data/folders.py.
        data_dir: where to look first: its subfolder of that name, then itself.
        coarse: CIFAR-100's 20 classes in place of the 100.
        resize: side of the squares that a folder's image files become, in pixels; None for 256.
        on_bad_image: what to do with image files that cannot be decoded: ``error`` or ``skip``.
        progress: told while data is fetched (name, bytes so far, bytes in all).

    Looks into ``data_dir``, $CONVLOOM_DATA, the cache and the system's data sets; then fetches.
    Notes and warnings go to the logger "convloom.data".

    Raises:
        DataError: no such name, damaged files, or all places and sources failed; says what to do.
    """
    known = catalog.find(os.fspath(name))
    if known is None and Path(name).expanduser().is_dir():
        folder = Path(name).expanduser()
        if is_image_folder(folder):
            if coarse:
                raise DataError("it has no coarse classes; only CIFAR-100's files do", folder)
            return folders.load_image_folder(
                folder, resize=resize or folders.RESIZE, on_bad_image=on_bad_image
            )
        _recognise(folder)
        _check_no_resize(resize, folder)
        return _load_folder(folder, coarse)
    known = known or catalog.get(os.fspath(name))
    _check_no_resize(resize, known.name)
    if coarse and not known.coarse:
        raise DataError(f"{known.name} has no coarse classes; only cifar100 does")
    loaded = _load(known, data_dir, coarse, progress)
    return loaded.train, loaded.test


def is_image_folder(name: str | os.PathLike[str]) -> bool:
    """Whether ``load`` would read a folder of image files, whose size is the caller's choice."""
    folder = Path(name).expanduser()
    if catalog.find(os.fspath(name)) is not None or not folder.is_dir():
        return False
    if any(layout.find(folder) for layout in layouts.LAYOUTS.values()):
        return False
    return folders.is_image_folder(folder)


def get(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> SetInfo:
    """Make sure that a set is on this machine, fetching it if need be; as ``info``, and raises
    as ``load``.
    """
    known = catalog.get(name)
    return _describe(known, _load(known, data_dir, False, progress))


def info(name: str, data_dir: str | os.PathLike[str] | None = None) -> SetInfo:
    """What a set on this machine consists of, read and checked. Fetches nothing.

    Raises:
        DataError: no such name, not on this machine, or damaged.
    """
    known = catalog.get(name)
    tried: list[tuple[str, str]] = []
    loaded = _load_local(known, data_dir, False, tried)
    if loaded is None:
        raise DataError(
            f"{known.name} is not on this machine; 'convloom data get {known.name}' fetches it "
            f"({known.transfer / 1e6:.0f} MB)." + _listing("Looked for:", tried)
        )
    return _describe(known, loaded)


def available(data_dir: str | os.PathLike[str] | None = None) -> tuple[SetEntry, ...]:
    """Every set that convloom knows by name, and where it lies. Reads no data, fetches nothing."""
    return tuple(_entry(known, data_dir) for known in catalog.SETS.values())


def _entry(known: KnownSet, data_dir: str | os.PathLike[str] | None) -> SetEntry:
    place = folder = problem = ""
    try:
        for candidate in locate.places(known, data_dir):
            found = locate.look(known, candidate)
            if isinstance(found, Found):
                place, folder = found.place.title, str(found.folder)
                break
    except DataError as error:
        problem = str(error)
    return SetEntry(
        known.name,
        known.title,
        known.terms,
        known.shape,
        len(known.classes),
        known.sizes,
        known.transfer,
        place,
        folder,
        problem,
    )


def _load(
    known: KnownSet,
    data_dir: str | os.PathLike[str] | None,
    coarse: bool,
    progress: Progress | None,
) -> _Loaded:
    tried: list[tuple[str, str]] = []
    loaded = _load_local(known, data_dir, coarse, tried)
    if loaded is not None:
        return loaded
    tried += _fetch(known, progress)
    for place in locate.places(known, None):
        if place.owned and isinstance(found := locate.look(known, place), Found):
            return _read_owned(known, found, coarse)
    raise DataError(_nowhere(known, tried))


def _load_local(
    known: KnownSet,
    data_dir: str | os.PathLike[str] | None,
    coarse: bool,
    tried: list[tuple[str, str]],
) -> _Loaded | None:
    """The set from the first place that has it; what was tried before it goes into ``tried``."""
    for place in locate.places(known, data_dir):
        found = locate.look(known, place)
        if not isinstance(found, Found):
            tried.append((place.title, found))
            if place.title == "--data-dir" and data_dir is not None:
                _log.warning("%s is not in --data-dir: %s", known.name, found)
        elif place.owned:
            try:
                return _read_owned(known, found, coarse)
            except AccessError:
                raise
            except DataError as error:
                _log.warning("deleted from the cache, to be fetched again: %s", error)
                tried.append((place.title, f"deleted, since {error}"))
        else:
            return _read_placed(known, found, coarse)
    return None


def _read_owned(known: KnownSet, found: Found, coarse: bool) -> _Loaded:
    """Read from the cache; whatever is not as it was fetched is deleted."""
    try:
        reading = layouts.LAYOUTS[known.layout].read(found.paths)
        recorded = fetch.recorded_digests(found.folder)
        for name, digest in reading.digests.items():
            path = found.paths[name]
            fetch.check_content(known, name, path, None, digest)
            if known.sha256(name) is None and recorded.get(name) != digest:
                raise WrongContentError(
                    f"expected the recorded SHA-256 {recorded.get(name)}, it has {digest}", path
                )
        return _assemble(known, found, reading, coarse)
    except AccessError:
        raise
    except DataError as error:
        files = set(found.paths.values())
        named = {path for path in files if str(path) == error.path}
        for path in named or files:
            with suppress(OSError):
                path.unlink()
        raise


def _read_placed(known: KnownSet, found: Found, coarse: bool) -> _Loaded:
    """Read what a person or the system put there: the structure must be right, the content may
    differ from the official one, but not be another set's.
    """
    reading = layouts.LAYOUTS[known.layout].read(found.paths)
    for name, digest in reading.digests.items():
        owner = _owner(digest)
        if owner is not None and owner != (known.name, name):
            raise WrongContentError(
                f"expected {name} of {known.name}, it is {owner[1]} of {owner[0]}; put the right "
                "file there",
                found.paths[name],
            )
        if known.sha256(name) not in (None, digest):
            _log.warning(
                "note: %s differs from the official %s of %s (SHA-256 of the content %s, official "
                "%s); it is used as it is",
                found.paths[name],
                name,
                known.name,
                digest,
                known.sha256(name),
            )
    return _assemble(known, found, reading, coarse)


def _owner(digest: str) -> tuple[str, str] | None:
    """(set, file) whose official content has this digest."""
    for known in catalog.SETS.values():
        for file in known.files:
            if file.sha256 == digest:
                return known.name, file.name
    return None


def _assemble(known: KnownSet, found: Found, reading: Reading, coarse: bool) -> _Loaded:
    for images, _ in (reading.train, reading.test):
        if images.shape[1:] != known.shape:
            raise DataError(
                f"the images of {known.name} are {known.shape} (channels, height, width), these "
                f"are {images.shape[1:]}; are they of another set?",
                found.folder,
            )
    classes = known.coarse if coarse else known.classes
    train, test = (
        _dataset(
            known.name,
            split,
            arrays,
            0 if coarse else -1,
            classes,
            known.mean,
            known.std,
            found.folder,
            files,
        )
        for split, arrays, files in (
            ("train", reading.train, reading.files),
            ("test", reading.test, ()),
        )
    )
    return _Loaded(train, test, found, reading.digests)


def _dataset(
    name: str,
    split: str,
    arrays: Arrays,
    column: int,
    classes: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    folder: Path,
    files: tuple[int, ...],
) -> ArrayDataset:
    images, labels = arrays
    try:
        return ArrayDataset(
            name=name,
            images=images,
            labels=np.ascontiguousarray(labels[:, column]),
            classes=classes,
            mean=mean,
            std=std,
            split=split,
            files=files,
        )
    except DataError as error:
        raise DataError(f"the {split} set cannot be used: {error}", folder) from error


def _fetch(known: KnownSet, progress: Progress | None) -> list[tuple[str, str]]:
    """Fetch what the cache lacks of a set; returns what was tried in vain."""
    folder = fetch.cache_folder() / known.name
    layout = layouts.LAYOUTS[known.layout]
    failures: list[tuple[str, str]] = []
    if known.downloads:
        missing = layout.missing(layout.find(folder))
        _log.info("fetching %s (about %.0f MB) into %s", known.name, known.transfer / 1e6, folder)
        failures = fetch.fetch_set(known, missing, folder, progress)
    if failures and known.debian is not None:
        _log.info("fetching %s from Debian's archive, as %s", known.name, known.debian.name)
        try:
            debian.fetch_package(known, known.debian, folder, progress)
        except FetchError as error:
            failures.append((f"apt-get download {known.debian.name}", str(error)))
    return failures


def _nowhere(known: KnownSet, tried: list[tuple[str, str]]) -> str:
    if not known.downloads and known.layout == "digits":
        return f"{known.name} is a part of convloom, but is missing here; install convloom again"
    layout = layouts.LAYOUTS[known.layout]
    files = " or ".join([", ".join(layout.files), *layout.archives])
    package = f"run 'apt install {known.debian.name}', or " if known.debian else ""
    return (
        f"{known.name} is not on this machine and could not be fetched."
        + _listing("Tried:", tried)
        + f"\nWhat to do: connect to the internet and try again, or {package}put {files} (each "
        f"plain, .gz or .xz; see {known.homepage}) into a folder DIR/{known.name} and give "
        "--data-dir DIR or set CONVLOOM_DATA=DIR"
    )


def _listing(title: str, tried: list[tuple[str, str]]) -> str:
    """Numbered lines, readable too where a message is printed as one line."""
    lines = (f"\n  {i}. {what}: {why};" for i, (what, why) in enumerate(tried, start=1))
    return f"\n{title}{''.join(lines)}"


def _describe(known: KnownSet, loaded: _Loaded) -> SetInfo:
    splits = {"train": loaded.train, "test": loaded.test}
    return SetInfo(
        name=known.name,
        title=known.title,
        terms=known.terms,
        homepage=known.homepage,
        place=loaded.found.place.title,
        folder=str(loaded.found.folder),
        files=tuple(_file_info(known, loaded, name) for name in loaded.found.paths),
        shape=loaded.train.shape,
        classes=loaded.train.classes,
        mean=loaded.train.mean,
        std=loaded.train.std,
        sizes={split: len(data) for split, data in splits.items()},
        counts={split: data.counts for split, data in splits.items()},
        digests={split: data.digest for split, data in splits.items()},
    )


def _file_info(known: KnownSet, loaded: _Loaded, name: str) -> FileInfo:
    path, digest, official = loaded.found.paths[name], loaded.digests[name], known.sha256(name)
    return FileInfo(
        name,
        str(path),
        path.stat().st_size,
        digest,
        None if official is None else official == digest,
    )


def _load_folder(folder: Path, coarse: bool) -> tuple[ArrayDataset, ArrayDataset]:
    """A person's own folder, in whichever layout its files have."""
    kind, layout = _recognise(folder)
    if coarse and kind != "cifar100":
        raise DataError("it has no coarse classes; only CIFAR-100's files do", folder)
    found = layout.find(folder)
    if missing := layout.missing(found):
        raise DataError(f"it lacks {', '.join(missing)} (each plain, .gz or .xz)", folder)
    reading = layout.read(found)
    column = 0 if coarse else -1
    classes = _class_names(folder, kind, reading, column)
    mean, std = statistics(reading.train[0])
    name = folder.resolve().name
    train, test = (
        _dataset(name, split, arrays, column, classes, mean, std, folder, files)
        for split, arrays, files in (
            ("train", reading.train, reading.files),
            ("test", reading.test, ()),
        )
    )
    return train, test


def _check_no_resize(resize: int | None, what: str | Path) -> None:
    if resize is not None:
        raise DataError(f"{what} has images of one size; only folders of image files are resized")


def _recognise(folder: Path) -> tuple[str, Layout]:
    for kind, layout in layouts.LAYOUTS.items():
        if layout.find(folder):
            return kind, layout
    expected = "; or ".join(", ".join(layouts.LAYOUTS[k].files) for k in ("idx", "cifar10"))
    expected += "; or batches.meta, data_batch_1 …; or train/CLASS/*.jpg and val/CLASS/*.jpg"
    raise DataError(f"there is no data set in this folder; expected {expected}", folder)


def _class_names(folder: Path, kind: str, reading: Reading, column: int) -> tuple[str, ...]:
    path = folder / "classes.txt"
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot be read as text: {error}", path) from error
        return tuple(line.strip() for line in lines if line.strip())
    if reading.classes:
        return reading.classes
    largest = max(
        int(labels[:, column].max(initial=-1)) for _, labels in (reading.train, reading.test)
    )
    if kind in catalog.SETS:  # CIFAR's files say no names, its page does
        known = catalog.SETS[kind]
        return known.coarse if column == 0 and known.coarse else known.classes
    return tuple(str(k) for k in range(largest + 1))
