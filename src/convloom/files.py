"""Files that are always whole: the old content or the new, whatever happens while writing.

Everything convloom keeps (networks, checkpoints, cached data, tables) is written here: to a
temporary file in the same folder, flushed to the disk, then renamed over the target. A killed
writer leaves a hidden ``.name.*.partial`` file that nobody reads; the next write removes it. A
live writer holds a lock on its own temporary file, so nobody removes that one.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from convloom.ir.errors import ConvloomError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_SUFFIX = ".partial"


class FileError(ConvloomError, OSError):
    """A file that cannot be read or written; the message names its path and the reason."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file to write into; it takes the place of ``path`` when the block ends well.

    If the block raises, or the disk is full, ``path`` keeps its old content and the temporary
    file is removed. Several processes may replace the same path; the last one to finish wins.
    A symbolic link is followed, and an existing file's permissions are kept.

    Raises:
        FileError: the folder is missing or not writable, or the disk is full.
    """
    target = Path(os.path.realpath(path))
    with _explained(path):
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if not target.parent.is_dir():
            raise FileNotFoundError(None, f"the folder {target.parent} does not exist")
        _remove_leftovers(target)
        temporary, descriptor = _locked_temporary(target)
    with _removed_on_failure(temporary), io.BufferedWriter(_Explained(descriptor, path)) as file:
        yield file
        with _explained(path):
            _keep_permissions(target, descriptor)
            file.flush()
            os.fsync(descriptor)
            os.replace(temporary, target)
    _flush_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the content of ``path`` as a whole. Raises FileError; see ``replacing``."""
    with replacing(path) as file:
        file.write(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Replace the content of ``path`` by UTF-8 text. Raises FileError; see ``replacing``."""
    write_bytes(path, content.encode())


class _Explained(io.FileIO):
    """A file whose write errors name the path that the person asked for."""

    def __init__(self, descriptor: int, path: str | os.PathLike[str]) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, content: Buffer, /) -> int:
        with _explained(self._path):
            return super().write(content)


def _locked_temporary(target: Path) -> tuple[Path, int]:
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_SUFFIX}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        if not _lock(descriptor, wait=True) or os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)  # another writer took it for a leftover before it was locked


def _remove_leftovers(target: Path) -> None:
    prefix = f".{target.name}."
    for name in os.listdir(target.parent):
        if name.startswith(prefix) and name.endswith(_SUFFIX):
            with contextlib.suppress(OSError):  # gone already, or another user's
                _remove_unless_locked(target.with_name(name))


def _remove_unless_locked(leftover: Path) -> None:
    descriptor = os.open(leftover, os.O_RDWR | os.O_CLOEXEC)
    try:
        if _lock(descriptor, wait=False):
            leftover.unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Whether the lock was taken; False too on file systems that have no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _keep_permissions(target: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems cannot; the rename itself is atomic all the same
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns an OSError of the system into one that says which file, and that it is unharmed."""
    try:
        yield
    except ConvloomError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        failure = FileError(f"cannot write {os.fspath(path)}: {reason}; nothing was changed")
        failure.errno = error.errno
        raise failure from error
