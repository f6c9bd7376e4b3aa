"""The content of a file that may be plain, gzip or xz, read once: bytes, and their SHA-256.

The kind of compression is read from the first bytes, never from the name: browsers unpack what
they save, and servers answer with pages of HTML under any name.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np

from convloom.data.errors import AccessError, DataError

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_HTML = (b"<!doctype", b"<html", b"<head", b"<?xml")
_CHUNK = 1 << 20
#: No byte of a gzip file holds more than 1032 bytes of content, none of an xz file more than 7100.
_MOST_EXPANSION = 10_000

_DECODING = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class Content:
    """The decompressed content of an open file, read from start to end.

    Every method raises DataError, with the file's path, for content that cannot be decompressed.

    Attributes:
        path: the file, for messages.
        compression: ``""``, ``"gzip"`` or ``"xz"``.
        consumed: bytes of content read so far.
        most: no file of this size can hold more bytes of content.
    """

    def __init__(self, path: Path, file: IO[bytes], compression: str, size: int) -> None:
        self.path = path
        self.compression = compression
        self.consumed = 0
        self.most = size * _MOST_EXPANSION if compression else size
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes, fewer only where the content ends."""
        buffer = bytearray(count)
        return bytes(buffer[: self.read_into(memoryview(buffer))])

    def read_into(self, buffer: memoryview) -> int:
        """Fill ``buffer``, which is bytes; returns how many there were."""
        done = 0
        while done < len(buffer):
            with _decoding(self.path, self.consumed, self.compression):
                # readinto is missing from the common type of the three openers, not from them.
                count = self._file.readinto(buffer[done : done + _CHUNK])  # type: ignore[attr-defined]
            if not count:
                break
            self._hash.update(buffer[done : done + count])
            done += count
            self.consumed += count
        return done

    def read_array(self, array: np.ndarray) -> int:
        """Fill a contiguous array with the next bytes; returns how many bytes there were."""
        return self.read_into(array.reshape(-1).view(np.uint8).data)

    def rest(self) -> int:
        """Read to the end; returns how many bytes were left. A checksum at the end is checked."""
        before, buffer = self.consumed, memoryview(bytearray(_CHUNK))
        while self.read_into(buffer):
            pass
        return self.consumed - before

    @property
    def sha256(self) -> str:
        """SHA-256 of what was read so far, in hexadecimal."""
        return self._hash.hexdigest()


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Content]:
    """The content of a file, plain, gzip or xz.

    Raises:
        DataError: the file is missing, empty, unreadable, or a page of HTML.
    """
    path = Path(path)
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
            size = os.fstat(raw.fileno()).st_size
            head = raw.read(64)
            raw.seek(0)
        except OSError as error:
            raise AccessError(f"cannot be read: {error.strerror or error}", path) from error
        if not head:
            raise DataError("the file is empty; delete it and get it again", path)
        if head.lstrip().lower().startswith(_HTML):
            raise DataError(
                "expected data, it is a page of HTML (a download that was answered with a web "
                "page); delete it and get it again",
                path,
            )
        if head.startswith(_GZIP):
            unpacked = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
            yield Content(path, unpacked, "gzip", size)
        elif head.startswith(_XZ):
            unpacked = cast(IO[bytes], stack.enter_context(lzma.LZMAFile(raw)))
            yield Content(path, unpacked, "xz", size)
        else:
            yield Content(path, raw, "", size)


def digest(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Size and SHA-256 of a file's decompressed content. Raises DataError if it is damaged."""
    with opened(path) as content:
        content.rest()
        return content.consumed, content.sha256


@contextmanager
def _decoding(path: Path, consumed: int, compression: str) -> Iterator[None]:
    try:
        yield
    except _DECODING as error:
        raise DataError(
            f"the {compression} data is damaged or cut short within {_CHUNK:,} bytes after byte "
            f"{consumed:,} of its content ({error}); delete the file and get it again",
            path,
        ) from error
    except OSError as error:
        raise AccessError(f"cannot be read: {error.strerror or error}", path) from error
