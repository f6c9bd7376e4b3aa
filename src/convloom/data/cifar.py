"""The binary versions of CIFAR-10 and CIFAR-100.

A file is a row of records: the label bytes (CIFAR-10: one; CIFAR-100: coarse, then fine), then
3072 bytes of a 32×32 image, its red, green and blue planes. Source: Krizhevsky,
https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version". A file may be plain, gzip or xz, or
still lie in the archive that the page offers.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

import numpy as np

from convloom.data.content import opened
from convloom.data.errors import DataError

Reader = Callable[[int], bytes]
SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Records:
    """One file's records.

    Attributes:
        images: (N, 3, 32, 32) uint8.
        labels: (N, label bytes) uint8.
        digest: SHA-256 of the decompressed file.
    """

    images: np.ndarray
    labels: np.ndarray
    digest: str


def read(path: Path, label_classes: tuple[int, ...]) -> Records:
    """The records of one file.

    Args:
        path: the file, plain, gzip or xz.
        label_classes: for each label byte, the number of classes: (10,) or (20, 100).

    Raises:
        DataError: damaged, not whole records, or a label that is out of range.
    """
    with opened(path) as content:
        parts = iter(lambda: content.read(1 << 22), b"")
        data = b"".join(parts)
        return _split(data, label_classes, path, content.sha256)


def read_archive(
    path: Path, label_classes: tuple[int, ...], names: tuple[str, ...]
) -> dict[str, Records]:
    """The records of the named files in a tar archive, wherever in it they lie.

    Raises:
        DataError: a damaged archive, a missing file, or as ``read``.
    """
    found: dict[str, Records] = {}
    for name, read_bytes, size in members(path, names):
        data = read_bytes(size)
        found[name] = _split(data, label_classes, path / name, sha256(data).hexdigest())
    return found


def members(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, Reader, int]]:
    """(name, reader, size) of the named files in a tar archive, plain, gzip or xz.

    A reader takes a number of bytes and returns the next so many; it ends with the iteration.

    Raises:
        DataError: a damaged archive, or files that are missing; known once all were seen.
    """
    missing = set(names)
    with opened(path), _unpacking(path), tarfile.open(path, "r|*") as archive:
        for member in archive:
            name = Path(member.name).name
            if name not in missing or not member.isfile():
                continue
            file = archive.extractfile(member)
            assert file is not None  # isfile() says so
            missing.remove(name)
            yield name, _reader(path, file), member.size
    if missing:
        raise DataError(f"the archive lacks {', '.join(sorted(missing))}; get it again", path)


def _reader(path: Path, file: IO[bytes]) -> Reader:
    def read_bytes(count: int) -> bytes:
        with _unpacking(path):
            return file.read(count)

    return read_bytes


@contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"the archive is damaged or cut short ({error}); delete it and get it again", path
        ) from error


def _split(data: bytes, label_classes: tuple[int, ...], path: Path, digest: str) -> Records:
    width = len(label_classes) + _PIXELS
    whole, rest = divmod(len(data), width)
    if rest or not whole:
        raise DataError(
            f"expected records of {width:,} bytes, the {len(data):,} bytes are {whole:,} records "
            f"and {rest:,} bytes more; the file is cut short or of another kind, get it again",
            path,
        )
    records = np.frombuffer(data, np.uint8).reshape(whole, width)
    labels = records[:, : len(label_classes)].copy()
    for column, classes in enumerate(label_classes):
        wrong = np.flatnonzero(labels[:, column] >= classes)
        if wrong.size:
            first = int(wrong[0])
            raise DataError(
                f"expected labels 0 to {classes - 1}, record {first} has {labels[first, column]}; "
                "the file is damaged or of another kind, get it again",
                path,
            )
    images = records[:, len(label_classes) :].reshape(whole, *SHAPE)
    return Records(np.ascontiguousarray(images), labels, digest)
