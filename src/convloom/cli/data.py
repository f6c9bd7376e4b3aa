"""``convloom data``: list, fetch and describe data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convloom.cli.errors import as_usage
from convloom.cli.options import DataDir, Json, Quiet, examples, group
from convloom.cli.terminal import Output, dims, table

if TYPE_CHECKING:
    from convloom.data import SetInfo

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        help="mnist, fashion-mnist, cifar10, cifar100 or digits.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    data = group(
        app,
        "data",
        "List, fetch and describe data sets.",
        "convloom data list",
        "convloom data get fashion-mnist",
    )
    data.command("list", epilog=examples("convloom data list --json"))(show_list)
    data.command(
        "get",
        epilog=examples("convloom data get fashion-mnist", "convloom data get mnist --json"),
    )(get)
    data.command(
        "info", epilog=examples("convloom data info mnist", "convloom data info mnist --json")
    )(info)


def show_list(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", show_default="all", help="Only this data set."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the data sets and where they lie on this machine."""
    from convloom.data import available, catalog

    with as_usage():
        wanted = None if name is None else catalog.get(name).name
    entries = [entry for entry in available(data_dir) if wanted in (None, entry.name)]
    rows = [
        (
            entry.name,
            f"{entry.sizes[0]:,} + {entry.sizes[1]:,}",
            dims(entry.shape),
            str(entry.classes),
            entry.problem or entry.folder or f"not here; {entry.transfer / 1e6:.0f} MB to fetch",
        )
        for entry in entries
    ]
    text = table(("name", "images", "shape", "classes", "where"), rows, left=(0, 4))
    Output(as_json).result([entry.as_dict() for entry in entries], text)


def get(name: Name, data_dir: DataDir = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Fetch a data set, if it is not here, and check it."""
    from convloom.cli.runs import Download
    from convloom.data import get as get_set

    output = Output(as_json, quiet)
    with as_usage():
        _check_name(name)
    with Download(output) as download:
        found = get_set(name, data_dir, progress=download)
    output.result(found.as_dict(), f"{found.name} is in {found.folder}")


def info(name: Name, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Describe a data set that is on this machine.

    All of it is read and checked; nothing is fetched.
    """
    from convloom.data import info as info_of

    with as_usage():
        _check_name(name)
    found = info_of(name, data_dir)
    Output(as_json).result(found.as_dict(), _description(found))


def _check_name(name: str) -> None:
    """Raises DataError for a name that no data set has; folders need no fetching or checking."""
    from convloom.data import DataError, catalog

    if catalog.find(name) is None and Path(name).is_dir():
        raise DataError(
            f"{name} is a folder, which train, eval and others take as --data {name}; here give "
            f"one of {', '.join(catalog.SETS)}"
        )
    catalog.get(name)


def _description(found: SetInfo) -> str:
    official = {True: "official", False: "not the official content", None: "no digest published"}
    facts = [
        (found.name, found.title),
        ("terms", found.terms),
        ("home", found.homepage),
        ("found in", f"{found.folder} ({found.place})"),
        ("images", ", ".join(f"{n:,} {split}" for split, n in found.sizes.items())),
        ("shape", " × ".join(map(str, found.shape)) + " (channels, height, width)"),
        ("mean", ", ".join(f"{value:.4f}" for value in found.mean) + " of pixels / 255"),
        ("std", ", ".join(f"{value:.4f}" for value in found.std)),
        *(("file", f"{f.path}, {f.size:,} bytes, {official[f.official]}") for f in found.files),
    ]
    width = max(len(label) for label, _ in facts)
    splits = list(found.counts)
    classes = table(
        ("", "class", *splits),
        [
            (str(i), name, *(f"{found.counts[split][i]:,}" for split in splits))
            for i, name in enumerate(found.classes)
        ],
        left=(1,),
    )
    return "\n".join([*(f"{label.ljust(width)}  {value}" for label, value in facts), "", classes])
