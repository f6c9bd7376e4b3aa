"""Where a data set may lie on this machine, in the order in which it is looked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from convloom.data.catalog import KnownSet
from convloom.data.errors import DataError
from convloom.data.fetch import cache_folder
from convloom.data.layouts import LAYOUTS

#: Folders in which systems install data sets (Debian's dataset-fashion-mnist does).
SYSTEM_FOLDERS = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))
BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class Place:
    """One place to look.

    Attributes:
        title: for messages.
        folders: looked into in this order; empty if the place does not exist here.
        absent: why there are no folders.
        owned: convloom put the files there: digests are enforced, and bad files deleted.
    """

    title: str
    folders: tuple[Path, ...] = ()
    absent: str = ""
    owned: bool = False


@dataclass(frozen=True)
class Found:
    """A complete set: {file: path}, all in one folder of a place."""

    place: Place
    folder: Path
    paths: dict[str, Path]


def places(known: KnownSet, data_dir: str | os.PathLike[str] | None) -> tuple[Place, ...]:
    """Every place where a set may lie, first to last."""
    if known.layout == "digits":
        return (Place("convloom itself", (BUNDLED,)),)
    return (
        _data_dir(data_dir, known.name),
        _variable(known.name),
        Place("the cache", (cache_folder() / known.name,), owned=True),
        Place(
            "the system's data sets", tuple(root / _system_name(known) for root in SYSTEM_FOLDERS)
        ),
    )


def look(known: KnownSet, place: Place) -> Found | str:
    """The set in a place, or why it is not there.

    Raises:
        DataError: a person's folder that has some of the set's files, but not all.
    """
    layout = LAYOUTS[known.layout]
    for folder in place.folders:
        found = layout.find(folder)
        missing = layout.missing(found)
        if not found:
            continue
        if not missing:
            return Found(place, folder, found)
        lacks = f"it has some files of {known.name}, but lacks {', '.join(missing)}"
        if place.owned:
            return f"{folder}: {lacks}"
        raise DataError(f"{lacks} (each plain, .gz or .xz); add what is missing", folder)
    if place.absent:
        return place.absent
    existing = [folder for folder in place.folders if folder.is_dir()]
    if existing:
        return f"{existing[0]} has no files of {known.name} ({', '.join(layout.files)})"
    return f"there is no folder {place.folders[0]}"


def _data_dir(folder: str | os.PathLike[str] | None, name: str) -> Place:
    if folder is None:
        return Place("--data-dir", absent="not given")
    root = Path(folder).expanduser()
    return Place("--data-dir", (root / name, root))


def _variable(name: str) -> Place:
    folder = os.environ.get("CONVLOOM_DATA")
    if not folder:
        return Place("$CONVLOOM_DATA", absent="not set")
    return Place("$CONVLOOM_DATA", (Path(folder).expanduser() / name,))


def _system_name(known: KnownSet) -> str:
    return known.debian.folder if known.debian else known.name
