"""Data sets out of Debian's archive, without root and without touching the system.

apt checks the archive's signatures with the system's keys and sources, but its package lists and
cache are private folders here, with an update of their own: a new machine's lists are empty, and
only root may update those of the system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from convloom.data import layouts
from convloom.data.catalog import DebianPackage, KnownSet
from convloom.data.errors import DataError
from convloom.data.fetch import FetchError, Progress, install, staging

#: Seconds that a whole run of apt-get or dpkg-deb may take.
TIME_LIMIT = 600.0
_OPTIONS = ("Acquire::http::Timeout=20", "Acquire::https::Timeout=20", "Acquire::Retries=1")


def fetch_package(
    known: KnownSet, package: DebianPackage, folder: Path, progress: Progress | None
) -> None:
    """Fetch a set's Debian package and put its files into a cache folder, if they are official.

    Raises:
        FetchError: no apt here, no such package, no connection, or another content.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FetchError(f"there is no {tool} on this machine (it is Debian's and Ubuntu's)")
    with staging(folder) as place:
        archive = _download(package, place, progress)
        unpacked = place / "unpacked"
        _run(["dpkg-deb", "--extract", str(archive), str(unpacked)], place)
        layout = layouts.LAYOUTS[known.layout]
        found = layout.find(unpacked / "usr/share/datasets" / package.folder)
        if missing := layout.missing(found):
            raise FetchError(f"the package {package.name} lacks {', '.join(missing)}")
        try:
            install(known, found, folder)
        except DataError as error:
            raise FetchError(f"what the package holds was refused: {error}") from error


def _download(package: DebianPackage, place: Path, progress: Progress | None) -> Path:
    options = [f"Dir::State::Lists={place}/lists", f"Dir::Cache={place}/cache", *_OPTIONS]
    for name in ("lists/partial", "cache/archives/partial", "package"):
        (place / name).mkdir(parents=True)
    if os.geteuid() == 0:
        # Else apt changes to the user _apt, who may not enter a private cache.
        options.append("APT::Sandbox::User=root")
    apt = ["apt-get", "--quiet=2", *(word for option in options for word in ("-o", option))]
    try:
        _run([*apt, "-o", "Acquire::Languages=none", "update"], place)
        problem = ""
    except FetchError as error:
        problem = f"; before that, {error}"  # some other source may be down, which is no matter
    target = place / "package"
    try:
        _run([*apt, "download", package.name], target, package, progress)
    except FetchError as error:
        raise FetchError(f"{error}{problem}") from error
    archive = next(target.glob("*.deb"), None)
    if archive is None:
        raise FetchError(f"apt-get gave no package {package.name}{problem}")
    return archive


def _run(
    command: list[str],
    cwd: Path,
    package: DebianPackage | None = None,
    progress: Progress | None = None,
) -> None:
    """Run a command in ``cwd``; shows as progress how the .deb grows there."""
    log = cwd / "output.txt"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        ) as process,
    ):
        try:
            _wait(process, cwd, package, progress)
        finally:
            process.kill()
    if process.returncode:
        shown = [w for w in command if w.isalpha() or w.startswith(("apt", "dpkg", "dataset"))]
        raise FetchError(f"'{' '.join(shown)}' failed: {_last_words(log, process.returncode)}")


def _wait(
    process: subprocess.Popen[bytes],
    cwd: Path,
    package: DebianPackage | None,
    progress: Progress | None,
) -> None:
    end = time.monotonic() + TIME_LIMIT
    while True:
        try:
            process.wait(timeout=0.1)
            return
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() > end:
            raise FetchError(f"{process.args!r} did not end within {TIME_LIMIT:g} s")
        if package and progress:
            done = sum(part.stat().st_size for part in cwd.glob("**/*.deb"))
            progress(f"{package.name}.deb", done, package.size)


def _last_words(log: Path, code: int) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E:")] or lines
    return errors[0] if errors else f"exit code {code}"
