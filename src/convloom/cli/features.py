"""``convloom features``: what a layer of a saved network makes of a data set, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convloom.cli import options
from convloom.cli.errors import as_usage
from convloom.cli.options import Saved, examples
from convloom.cli.terminal import Output


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "features",
        epilog=examples(
            "convloom features runs/a --layer fc7 --data mnist --out fc7.npz",
            "convloom features runs/a --layer fc7_neuron --train-set --out fc7.safetensors",
            "convloom features runs/alexnet --layer 16 --multiview --out views.npz",
        ),
    )(features)


def features(
    saved: Saved,
    layer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="A layer, for the last tensor that it makes. One of a layer file is what its "
            "section says; NAME_neuron is behind its neuron.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The file to write, .npz or .safetensors: features, a float32 row an image, and "
            "labels.",
        ),
    ],
    data: options.SavedData = None,
    data_dir: options.DataDir = None,
    train_set: options.TrainSet = False,
    best: options.Best = False,
    multiview: options.Multiview = False,
    resize: options.Resize = None,
    on_bad_image: options.OnBadImage = None,
    batch_size: options.AtATime = 256,
    device: options.Device = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write what a layer makes of a data set into a file.

    The file has a row an image, as the network predicts. Batches are written as they are made, so
    that it may be larger than the memory.
    """
    options.use_threads(threads)
    from convloom.backends import resolve_device
    from convloom.cli.progress import LiveLine
    from convloom.cli.saved import open_images, open_saved, views_for
    from convloom.training.extraction import check_request, write_features

    output = Output(as_json, quiet)
    network = open_saved(saved, output, best=best)
    with as_usage():  # before anything is read
        check_request(out, network.model, layer)
    images = open_images(
        network,
        data,
        data_dir,
        output,
        train_set=train_set,
        resize=resize,
        on_bad_image=on_bad_image,
    )
    views = views_for(images, ten_crop=False, multiview=multiview)
    chosen = images.dataset if views is None else images.whole
    line = LiveLine(output)

    def told(done: int, total: int) -> None:
        if line.due():
            line.draw("features", done / total, [f"{done:,} of {total:,} images"])

    try:
        shape = write_features(
            out,
            network.model,
            chosen,
            layer,
            views=views,
            batch_size=batch_size,
            device=device or "auto",
            precision=network.origin.precision,
            progress=told,
        )
    finally:
        line.close()
    document = {
        "model": str(network.path),
        "data": images.dataset.name,
        "split": images.dataset.split,
        "layer": layer,
        "multiview": multiview,
        "device": resolve_device(device or "auto"),
        "shape": list(shape),
        "file": str(out),
    }
    text = (
        f"{shape[1]:,} features of {layer} for the {shape[0]:,} images of the "
        f"{images.dataset.name} {images.dataset.split} set: {out}"
    )
    output.result(document, text)
