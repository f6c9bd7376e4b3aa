"""Compiled kernels on disk, under names that change with everything that made them.

A file is its content followed by the content's SHA-256, so that a truncated or damaged one is
seen before a loader touches it. Files appear by rename: any number of processes may write the
same one.
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
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "convloom"
    # A user without a home (some containers) has no cache: the first write fails and says so.
    home = os.path.expanduser("~")
    return Path("/nonexistent" if home == "~" else home) / ".cache" / "convloom"


class ObjectCache:
    """One backend's compiled kernels in a cache folder.

    Args:
        root: the cache folder, shared by all backends.
        kind: the backend's folder in it.
        suffix: of the files, as their loader expects it.
    """

    def __init__(self, root: Path, kind: str = "cpu", suffix: str = ".so") -> None:
        self.folder = root / kind
        self.suffix = suffix
        self._warned = False

    def path(self, stem: str, key: str) -> Path:
        """Where the object of this key lies, or would lie."""
        return self.folder / f"{stem}-{key[:32]}{self.suffix}"

    def read(self, path: Path) -> bytes | None:
        """The content of ``path``, or None unless it is there and undamaged."""
        try:
            content = path.read_bytes()
        except OSError:
            return None
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        whole = len(body) > 0 and hashlib.sha256(body).digest() == digest
        return body if whole else None

    def holds(self, path: Path) -> bool:
        """Whether ``path`` is there and undamaged."""
        return self.read(path) is not None

    def publish(self, built: Path, path: Path) -> bool:
        """Put a freshly built file at ``path``; see ``store``."""
        return self.store(built.read_bytes(), path)

    def store(self, body: bytes, path: Path) -> bool:
        """Put ``body`` at ``path``; returns whether it could, and warns once when it could not."""
        try:
            self._write(body, path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"compiled kernels cannot be kept in {self.folder} "
                    f"({error.strerror or error}), so only this process has them and the next one "
                    "compiles again; set CONVLOOM_CACHE to a folder that can be written",
                    stacklevel=3,
                )
            return False
        return True

    def _write(self, body: bytes, path: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-", suffix=self.suffix)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body + hashlib.sha256(body).digest())
            os.chmod(name, 0o755)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
