"""Fetching a data set into the cache: whole and verified, or not at all.

Everything is first written into a folder of its own in the cache, checked there, and then put in
place as a whole. What fails its check is deleted with that folder.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from convloom.data import cifar
from convloom.data.catalog import Download, KnownSet
from convloom.data.content import digest
from convloom.data.errors import DataError, WrongContentError
from convloom.files import replacing, write_text

#: Told as data arrives: what is being fetched, bytes so far, bytes in all.
Progress = Callable[[str, int, int], None]

#: File in a set's cache folder with the SHA-256 of files for which none is published.
RECORD = "verified.json"
#: Seconds without any data before a connection is given up.
TIMEOUT = 20.0
ATTEMPTS = 3
#: Seconds before the second attempt; twice as many before the third.
PAUSE = 0.5
_STAGING = ".fetching-"
_CHUNK = 1 << 18
_DAY = 86_400


class FetchError(DataError):
    """One source that did not give what was asked of it; the message says why."""


class _BrokenOffError(FetchError):
    """A transfer that ended early; worth another attempt."""


def cache_folder() -> Path:
    """Where fetched sets are kept: ``$XDG_CACHE_HOME/convloom/data``, by default in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "convloom" / "data"


def fetch_set(
    known: KnownSet, files: tuple[str, ...], folder: Path, progress: Progress | None
) -> list[tuple[str, str]]:
    """Fetch ``files`` of a set from its official sources into a cache folder.

    Returns:
        [(address, why it failed)], empty if all files are in place now.
    """
    failures: dict[str, tuple[str, str]] = {}
    for download in known.downloads:
        if not set(download.files) & set(files):
            continue
        for url in download.urls:
            mirror = url.rsplit("/", 1)[0]
            if mirror in failures:  # it would let us wait for each file anew
                continue
            try:
                _fetch(known, download, url, folder, progress)
                break
            except FetchError as error:
                failures[mirror] = (url, str(error))
        else:
            return list(failures.values())
    return []


def _fetch(
    known: KnownSet, download: Download, url: str, folder: Path, progress: Progress | None
) -> None:
    with staging(folder) as place:
        arrived = place / url.rsplit("/", 1)[1]
        transfer(url, arrived, download.size, progress)
        _check_transfer(arrived, download)
        try:
            if download.archive:
                _install_archive(known, download, arrived, folder)
            else:
                install(known, {download.files[0]: arrived}, folder)
        except DataError as error:
            problem = str(error).replace(f"{arrived}: ", "").replace(str(arrived), arrived.name)
            raise FetchError(f"what arrived was refused: {problem}") from error


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A new folder beside a cache folder's files, removed with all that is left in it.

    Raises:
        DataError: the cache cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        place = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))
    except OSError as error:
        raise DataError(
            f"the cache cannot be written ({error.strerror or error}); set XDG_CACHE_HOME to a "
            "folder that can",
            folder,
        ) from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what a killed process left; anything younger than a day may be in use."""
    for place in folder.glob(f"{_STAGING}*"):
        with suppress(OSError):
            if time.time() - place.stat().st_mtime > _DAY:
                shutil.rmtree(place, ignore_errors=True)


def install(known: KnownSet, arrived: Mapping[str, Path], folder: Path) -> None:
    """Put files, each plain or compressed, into the cache if their content is the official one.

    Raises:
        WrongContentError: another content, in any of the files; then none is put in place.
        DataError: damaged, or the cache cannot be written.
    """
    for name, path in arrived.items():
        check_content(known, name, path, *digest(path))
    for name, path in arrived.items():
        with path.open("rb") as source, replacing(folder / f"{name}{_suffix(path)}") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def check_content(known: KnownSet, name: str, path: Path, size: int | None, sha256: str) -> None:
    """Raises WrongContentError unless the content is the official one, where that is known."""
    expected = known.sha256(name)
    length = next(file.size for file in known.files if file.name == name)
    if size is not None and size != length:
        raise WrongContentError(f"expected {length:,} bytes of content, it has {size:,}", path)
    if expected is not None and expected != sha256:
        raise WrongContentError(
            f"expected the SHA-256 {expected} for the content of {known.name}'s {name}, it has "
            f"{sha256}",
            path,
        )


def _suffix(path: Path) -> str:
    return path.suffix if path.suffix in (".gz", ".xz") else ""


def _install_archive(known: KnownSet, download: Download, archive: Path, folder: Path) -> None:
    recorded = recorded_digests(folder)
    for name, read_bytes, size in cifar.members(archive, download.files):
        with replacing(folder / name) as target:
            sha256 = _copy(read_bytes, target)
            check_content(known, name, archive / name, size, sha256)
        if known.sha256(name) is None:  # the archive's own digest, checked before, vouches for it
            recorded[name] = sha256
    if recorded:
        write_text(folder / RECORD, json.dumps(recorded, indent=1) + "\n")


def _copy(read_bytes: cifar.Reader, target: IO[bytes]) -> str:
    sha256 = hashlib.sha256()
    while chunk := read_bytes(_CHUNK):
        sha256.update(chunk)
        target.write(chunk)
    return sha256.hexdigest()


def recorded_digests(folder: Path) -> dict[str, str]:
    """{file: SHA-256} of the files that were verified by their archive's digest."""
    try:
        recorded = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in recorded.items()} if isinstance(recorded, dict) else {}


def _check_transfer(path: Path, download: Download) -> None:
    for kind, expected in download.digests:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != expected:
            raise FetchError(
                f"what arrived was refused: expected the {kind} {expected}, the "
                f"{path.stat().st_size:,} bytes have {found}"
            )


def transfer(url: str, path: Path, size: int, progress: Progress | None = None) -> None:
    """Write what an http or https address gives into ``path``.

    A transfer that breaks off is taken up where it ended if the server can do that, else begun
    anew; after ``ATTEMPTS`` it fails.

    Args:
        url: the address.
        path: where to; overwritten.
        size: bytes to expect; more than twice as many are refused.
        progress: told as the bytes arrive.

    Raises:
        FetchError: no connection, an error of the server, too much or too little data.
    """
    with path.open("wb") as file:
        state = _Transfer(url, file, size, progress or (lambda *_: None))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                state.go_on()
                return
            except _BrokenOffError:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(PAUSE * attempt)


@dataclass
class _Transfer:
    url: str
    file: IO[bytes]
    size: int
    progress: Progress
    validator: str = field(default="", init=False)

    def go_on(self) -> None:
        """One connection: the bytes that are still missing."""
        with self._connect() as response, _explained():
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                self.file.seek(0)
                self.file.truncate()
                self.validator = response.headers.get("ETag") or ""
            self._receive(response)

    def _connect(self) -> http.client.HTTPResponse:
        request = urllib.request.Request(self.url, headers={"User-Agent": "convloom"})
        if self.file.tell() and self.validator:
            request.add_header("Range", f"bytes={self.file.tell()}-")
            request.add_header("If-Range", self.validator)
        with _explained():
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
            return response

    def _receive(self, response: http.client.HTTPResponse) -> None:
        promised = response.headers.get("Content-Length")
        total = self.file.tell() + int(promised) if promised and promised.isdigit() else None
        name = self.url.rsplit("/", 1)[1]
        while chunk := response.read(_CHUNK):
            self.file.write(chunk)
            if self.file.tell() > 2 * self.size:
                raise FetchError(
                    f"it sends more than {2 * self.size:,} bytes, about {self.size:,} were expected"
                )
            self.progress(name, self.file.tell(), total or self.size)
        if total is not None and self.file.tell() != total:
            raise _BrokenOffError(
                f"the connection ended after {self.file.tell():,} of {total:,} bytes"
            )


@contextmanager
def _explained() -> Iterator[None]:
    """Turns what urllib raises into a FetchError; only a connection that stood may be retried."""
    try:
        yield
    except urllib.error.HTTPError as error:
        kind = _BrokenOffError if error.code >= 500 or error.code == 429 else FetchError
        raise kind(f"the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, (TimeoutError, socket.timeout)):
            raise FetchError(f"no connection within {TIMEOUT:g} s") from error
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise FetchError(f"no connection: {reason}") from error
    except TimeoutError as error:
        raise _BrokenOffError(f"the server sent nothing for {TIMEOUT:g} s") from error
    except (http.client.HTTPException, ConnectionError) as error:
        raise _BrokenOffError(f"the connection broke: {error or type(error).__name__}") from error
    except OSError as error:
        raise FetchError(f"cannot be written: {error.strerror or error}") from error
