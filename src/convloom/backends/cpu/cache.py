"""Shared objects on disk, under a name that changes with everything that made them.

A file is the shared object followed by its own SHA-256, so that a truncated or damaged one is
seen before the dynamic loader touches it. Files appear by rename: any number of processes may
write the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_directory() -> Path:
    """``$CONVLOOM_CACHE``, else ``convloom`` in the user's cache folder; it need not exist."""
    if chosen := os.environ.get("CONVLOOM_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "convloom"


class ObjectCache:
    """The shared objects of one cache folder."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "cpu"
        self._warned = False

    def path(self, stem: str, key: str) -> Path:
        """Where the object of this key lies, or would lie."""
        return self.folder / f"{stem}-{key[:32]}.so"

    def holds(self, path: Path) -> bool:
        """Whether ``path`` is there and undamaged."""
        try:
            content = path.read_bytes()
        except OSError:
            return False
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        return len(body) > 0 and hashlib.sha256(body).digest() == digest

    def publish(self, built: Path, path: Path) -> None:
        """Put a freshly built object at ``path``; warns once when the folder cannot be written."""
        try:
            self._write(built.read_bytes(), path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"compiled kernels cannot be kept in {self.folder} "
                    f"({error.strerror or error}), so this process uses a temporary folder and the "
                    "next one compiles again; set CONVLOOM_CACHE to a folder that can be written",
                    stacklevel=2,
                )

    def _write(self, body: bytes, path: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-", suffix=".so")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body + hashlib.sha256(body).digest())
            os.chmod(name, 0o755)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
