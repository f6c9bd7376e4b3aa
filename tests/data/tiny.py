"""A data set of a few images that the catalog is made to know, and a server that offers it."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from convloom.data.catalog import IDX_NAMES, Download, KnownFile, KnownSet

TRAIN, TEST = 30, 10


def idx_bytes(array: np.ndarray) -> bytes:
    """A uint8 array as an idx file, written here apart from the code under test."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_contents(seed: int = 0) -> dict[str, bytes]:
    """{file: content} of a set of 30 + 10 images of 1×6×5."""
    rng = np.random.default_rng(seed)
    sizes = {"images": (6, 5), "labels": ()}
    return {
        name: idx_bytes(
            rng.integers(
                0,
                256 if "images" in name else 10,
                (TRAIN if "train" in name else TEST, *sizes[name.split("-")[1]]),
            ).astype(np.uint8)
        )
        for name in IDX_NAMES
    }


def known_idx(name: str, contents: Mapping[str, bytes], bases: tuple[str, ...]) -> KnownSet:
    """A catalog entry for such a set, to be had gzip-compressed from ``bases``."""
    return KnownSet(
        name=name,
        title="Tiny",
        layout="idx",
        files=tuple(KnownFile(n, len(c), sha256(c)) for n, c in contents.items()),
        classes=tuple("0123456789"),
        shape=(1, 6, 5),
        sizes=(TRAIN, TEST),
        mean=(0.5,),
        std=(0.25,),
        terms="none",
        homepage="http://example.org/tiny",
        downloads=tuple(
            Download(tuple(f"{base}{n}.gz" for base in bases), len(gzip.compress(c)), (n,))
            for n, c in contents.items()
        ),
    )


def cifar_bytes(count: int, label_classes: tuple[int, ...], seed: int = 0) -> bytes:
    """``count`` records of CIFAR's binary version."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, classes, (count, 1)) for classes in label_classes]
    records = np.concatenate([*columns, rng.integers(0, 256, (count, 3072))], axis=1)
    return records.astype(np.uint8).tobytes()


def tar_gz(files: Mapping[str, bytes], folder: str = "some-folder") -> bytes:
    """A tar.gz archive of files in a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def place(folder: Path, contents: Mapping[str, bytes], suffix: str = "") -> Path:
    """Write files, compressed if the suffix is .gz; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        packed = gzip.compress(content) if suffix == ".gz" else content
        (folder / f"{name}{suffix}").write_bytes(packed)
    return folder


def sha256(content: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@dataclass
class Site:
    """What the server offers, and what it was asked.

    Attributes:
        base: the server's address.
        files: {path: content}; anything else is answered 404.
        asked: (path, Range header) of every request so far.
        trouble: called before each answer; returns False if it has dealt with the request.
    """

    base: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    trouble: Callable[[BaseHTTPRequestHandler, bytes], bool] | None = None


@contextmanager
def serving() -> Iterator[Site]:
    """A web server on this machine's loopback address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range") or ""
            site.asked.append((self.path, wanted))
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            if site.trouble is not None and not site.trouble(self, content):
                return
            start = int(wanted[len("bytes=") : -1]) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", f'"{sha256(content)[:8]}"')
            self.end_headers()
            self.wfile.write(content[start:])

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
