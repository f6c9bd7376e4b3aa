"""``convloom show filters``: the filters of a layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convloom.cli import options
from convloom.cli.errors import UsageError, as_usage
from convloom.cli.show.shared import Window, check_out, deliver, out_option
from convloom.cli.terminal import Output


def filters(
    saved: options.Saved,
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the first convolution",
            help="A layer with filters: a convolution, a locally connected or a Linear layer.",
        ),
    ] = None,
    input: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of a layer that adds up several inputs: the one whose filters to show.",
        ),
    ] = 0,
    channels: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            show_default="rgb for filters over 3 channels, else each",
            help="rgb shows filters in colour, each has a row for every channel.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Which weights go from black to white together: all, those of the layer, or "
            "filter, those of each filter.",
        ),
    ] = "all",
    place: Annotated[
        str | None,
        typer.Option(
            metavar="ROW,COLUMN",
            show_default="the middle",
            help="Of a locally connected layer: the output pixel whose filters to show.",
        ),
    ] = None,
    first: Annotated[
        int, typer.Option(metavar="N", min=0, help="The first filter to show, counted from 0.")
    ] = 0,
    count: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="as many as can be told apart",
            help="Filters to show.",
        ),
    ] = None,
    best: options.Best = False,
    out: Annotated[Path | None, out_option("filters-LAYER.png")] = None,
    window: Window = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the filters of a layer as a grid.

    Filters over three channels are shown in colour, others with a row for each channel, in grey.
    Those of a Linear layer have the shape of the map that it reads. Weights that are not finite
    are magenta.
    """
    from convloom.cli.saved import open_saved
    from convloom.inspection.filters import filters_of, plot_filters

    output = Output(as_json, quiet)
    check_out(out)
    network = open_saved(saved, output, best=best)
    with as_usage():
        found = filters_of(network.model, layer, index=input, place=_place(place))
        figure = plot_filters(found, channels=channels, scale=scale, first=first, count=count)
    document = {
        "model": str(network.path),
        "layer": found.layer,
        "kind": found.kind,
        "input": found.index,
        "shape": found.weights.shape,
        "place": found.place,
    }
    deliver(
        figure,
        out,
        f"filters-{found.layer}.png",
        output,
        window=window,
        document=document,
        text=str(found),
    )


def _place(text: str | None) -> tuple[int, int] | None:
    """``3,4``. Raises UsageError for anything else."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--place must be a row and a column such as 3,4, not {text!r}")
    row, column = map(int, parts)
    return row, column
