"""``convloom convnet``: what a network file of 2012 says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convloom.cli.errors import as_usage
from convloom.cli.options import Json, examples, group
from convloom.cli.terminal import Output, table

Layers = Annotated[Path, typer.Argument(metavar="LAYERS", help="A layer file.")]
Size = Annotated[
    int, typer.Option("--size", metavar="N", min=1, help="Height and width of the images.")
]
Classes = Annotated[
    int | None,
    typer.Option(
        "--classes", metavar="N", show_default="1000", help="Classes, which a treefc needs."
    ),
]
Tree = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default="none",
        help="The class tree of a treefc: JSON, {class: group, group: root} or an array of "
        "parents by node number.",
    ),
]

_HEADS = ("layer", "type", "channels or outputs", "height", "width", "parameters")


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    convnet = group(
        app,
        "convnet",
        "Read the network files of 2012, layers.cfg and params.cfg.",
        "convloom convnet describe layers.cfg --size 32",
    )
    convnet.command(
        "describe",
        epilog=examples(
            "convloom convnet describe layers.cfg params.cfg --size 224",
            "convloom convnet describe layers.cfg --size 32 --json",
        ),
    )(describe)


def describe(
    layers: Layers,
    params: Annotated[
        Path | None,
        typer.Argument(metavar="PARAMS", show_default=False, help="Its parameter file, to check."),
    ] = None,
    size: Size = 224,
    classes: Classes = None,
    tree: Tree = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what the original code refused.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print what each layer of a file gives and how many parameters it has.

    What was remedied or ignored is said on stderr.
    """
    from convloom.convnet import read_network, read_rules
    from convloom.convnet.describe import rows
    from convloom.convnet.initial import functions

    output = Output(as_json)
    with as_usage():
        network = read_network(layers, size, classes=classes, tree=tree, strict=strict)
        taken = functions(network)
        notes = network.notes
        if params is not None:
            notes += read_rules(params, network, strict=strict).notes
    for note in notes:
        output.remark(note)
    if taken:
        output.remark(taken)
    found = rows(network)
    for name in (row[0] for row in found if row[-1] is None):
        output.remark(f"[{name}] has as many parameters as its class tree makes it: --tree FILE")
    cells = [["" if cell is None else str(cell) for cell in row] for row in found]
    output.result(found, table(_HEADS, cells, left=(0, 1)))
