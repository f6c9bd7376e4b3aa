"""``convloom show maps``: what a layer makes of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convloom.cli import options
from convloom.cli.errors import as_usage
from convloom.cli.show.shared import Window, check_out, deliver, out_option
from convloom.cli.terminal import Output


def maps(
    saved: options.Saved,
    image: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGE",
            show_default=False,
            help="An image file (PNG, JPEG …). It is brought to the network's size and channels.",
        ),
    ],
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the first convolution",
            help="The layer whose maps to show; or a tensor, relu.out#2, where one layer runs at "
            "several places.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Which numbers share a range of colours: all, those of the layer, or map, those "
            "of each map.",
        ),
    ] = "all",
    best: options.Best = False,
    device: options.Device = None,
    threads: options.Threads = None,
    out: Annotated[Path | None, out_option("maps-LAYER.png")] = None,
    window: Window = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the feature maps that a layer makes of an image.

    They are those of the network as it predicts. Maps of numbers above and below zero are red and
    blue, others grey; numbers that are not finite are magenta.
    """
    options.use_threads(threads)
    from convloom.cli.saved import open_saved
    from convloom.inspection.filters import filters_of
    from convloom.inspection.maps import feature_maps, plot_maps

    output = Output(as_json, quiet)
    check_out(out)
    network = open_saved(saved, output, best=best)
    pixels, notes = network.views(image)
    for note in notes:
        output.remark(f"{image}: {note}")
    with as_usage():
        layer = layer or filters_of(network.model).layer
        (found,) = feature_maps(network.model, pixels, layer, device=device or "auto")
        title = f"{layer} of {image.name}: {'×'.join(map(str, found.shape))}"
        figure = plot_maps(found, title, scale=scale)
    document = {
        "model": str(network.path),
        "image": str(image),
        "layer": layer,
        "shape": found.shape,
    }
    deliver(
        figure,
        out,
        f"maps-{layer}.png",
        output,
        window=window,
        document=document,
        text=title,
    )
